"""Write the generated parts of the documents, or compare them with what is there.

    python -m docs.generate            write
    python -m docs.generate --check    exit 1 and name each part that differs

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. People write everything around it.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import msgspec
from prometheus_client import Counter, Info
from prometheus_client.metrics import MetricWrapperBase

from docs import security
from docs.apidifferences import KNOWN, NOT_SENT
from docs.states import MACHINES
from pvbus.cli.main import pvbus
from pvbus.controlplane.apiserver import accepting, connections, frontend, shares
from pvbus.core.api.variants import Condition
from pvbus.core.kernel.eventrows import ConditionEvent, EventCause, EventTask
from pvbus.core.kernel.rights import ALL_RIGHTS
from pvbus.core.kernel.topics import TOPICS
from pvbus.core.kernel.topicspecs import Topic
from pvbus.core.variants.publishing import ATTRIBUTES, EVENT_TYPES, LAST_REASONS
from pvbus.install import sizing
from pvbus.install.dashboard import QUESTIONS
from pvbus.install.monitoring import ALERTS, Alert
from pvbus.install.workloads import NEEDS
from pvbus.runtime.process import settings
from pvbus.runtime.process.configuration import variable_of
from pvbus.telemetry import metrics

ROOT = Path(__file__).parent.parent
FILES = (
    "ARCHITECTURE.md",
    "docs/alerts.md",
    "docs/events.md",
    "docs/installing.md",
    "docs/operations.md",
    "docs/reference.md",
    "docs/security.md",
    "docs/sizing.md",
)
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.S)
HELP_WIDTH = 100
HOUR_SECONDS = 3600


def topics() -> str:
    """Return the table of topics, from the same contracts that Kafka's topics are made from."""
    rows = [
        (
            f"`{contract.spec.name}`" + (" (public)" if contract.public else ""),
            contract.key,
            contract.partitioned_by,
            ", ".join(f"`{value}`" for value in contract.values),
            ", ".join(contract.producers),
            ", ".join(contract.owners),
            ", ".join(contract.readers),
            _cleanup(contract),
        )
        for contract in TOPICS
    ]
    heads = ("topic", "key", "partitioned by", "rows", "written by", "owned by", "read in full by", "cleanup")
    return _table(heads, rows)


def _cleanup(contract: Topic) -> str:
    seconds = contract.spec.retention_seconds
    return (
        contract.spec.cleanup if seconds is None else f"{contract.spec.cleanup}, {seconds // HOUR_SECONDS} h"
    )


def commands() -> str:
    """Return the help of every command, under a heading each."""
    return "\n\n".join(
        f"### pvbus {name}\n\n```text\n{_help(name)}\n```"
        for name in pvbus.list_commands(click.Context(pvbus))
    )


def _help(name: str) -> str:
    context = click.Context(pvbus, info_name="pvbus", terminal_width=HELP_WIDTH)
    command = pvbus.get_command(context, name)
    assert command is not None
    texts = [_help_of(command, name, context)]
    if isinstance(command, click.Group):
        parent = click.Context(command, info_name=name, parent=context, terminal_width=HELP_WIDTH)
        texts += [_help_of(each, called, parent) for called, each in sorted(command.commands.items())]
    return "\n\n".join(texts)


def _help_of(command: click.Command, name: str, parent: click.Context) -> str:
    inner = click.Context(command, info_name=name, parent=parent, terminal_width=HELP_WIDTH)
    return "\n".join(line.rstrip() for line in command.get_help(inner).splitlines())


def setting_tables() -> str:
    """Return the settings of each class: its explanation, and a line for each variable."""
    return "\n\n".join(_settings_of(*each) for each in _SETTINGS)


_SETTINGS: tuple[tuple[str, type[settings.ProcessConfig]], ...] = (
    ("Every process", settings.ProcessConfig),
    ("Every service: the bus, the API server, health", settings.ServiceConfig),
    ("Kafka, for services and commands", settings.KafkaConfig),
    ("`unroll`: limits of removals", settings.UnrollConfig),
    ("`conditions`", settings.ConditionsConfig),
    ("`promote`", settings.PromoteConfig),
    ("`rollout`", settings.RolloutConfig),
    ("`resolve` and `establish`: where packages are read from", settings.SourcesConfig),
    ("`resolve` and `establish`", settings.PlatformConfig),
    ("`resolve`", settings.ResolveConfig),
    ("The embedded API server with its package store, and `packages`", settings.ApiServerConfig),
    ("`packages`: the package store as an aggregated API", settings.PackagesConfig),
    ("`web`: the page of the fleet", settings.WebConfig),
    ("`sink`: the webhook sink", settings.SinkConfig),
)


def _settings_of(title: str, type_: type[settings.ProcessConfig]) -> str:
    base = type_.__bases__[0]
    inherited = {field.name for field in _fields(base)} if issubclass(base, settings.ProcessConfig) else set()
    if type_ is settings.PackagesConfig:  # it is no service on the bus, and shares four settings with them
        inherited |= {field.name for field in _fields(settings.ServiceConfig)}
    own = [field for field in _fields(type_) if field.name not in inherited]
    rows = [
        (
            f"`{variable_of(field.name)}`",
            f"`{field.encode_name}`",
            _takes(field.type),
            _default(field),
        )
        for field in own
    ]
    text = inspect.cleandoc(type_.__doc__ or "")
    for field in own:  # a word of its own is a field's name only where it is explained
        end = "" if "_" in field.name else "(?=:)"
        text = re.sub(rf"(?<![\w`]){field.name}(?![\w`]){end}", f"`{variable_of(field.name)}`", text)
    return f"### {title}\n\n{text}\n\n{_table(('variable', 'key in the file', 'takes', 'default'), rows)}"


def _fields(type_: type) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(type_)


def _takes(type_: Any) -> str:
    """Return what a setting takes: its choices, else its type in a word."""
    if get_origin(type_) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(type_) if choice)
    plain = get_args(type_)[0] if get_origin(type_) is Annotated else type_
    return {bool: "`true`, `false`", str: "text", int: "number", float: "number"}.get(plain, "map")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default in ("", msgspec.NODEFAULT):
        return ""
    return f"`{str(field.default).lower()}`" if isinstance(field.default, bool) else f"`{field.default}`"


def metric_table() -> str:
    """Return every metric that is declared: name, type, labels, meaning."""
    found = {id(value): value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)}
    rows = [
        (
            f"`{_metric_name(metric)}`",
            one.type,
            ", ".join(f"`{label}`" for label in metric._labelnames),
            one.documentation,
        )
        for metric in found.values()
        for one in metric.describe()
    ]
    return _table(("metric", "type", "labels", "meaning"), rows)


def _metric_name(metric: MetricWrapperBase) -> str:
    name = next(iter(metric.describe())).name
    return name + ("_total" if isinstance(metric, Counter) else "_info" if isinstance(metric, Info) else "")


def rights() -> str:
    """Return the rights of each service on the API server."""
    rows = [
        (f"`{service}`", f"`{right.title}`", ", ".join(right.verbs), right.why)
        for service, found in ALL_RIGHTS.items()
        for right in found
    ]
    rows += [(f"`{service}`", "none", "", "") for service, found in ALL_RIGHTS.items() if not found]
    return _table(("service", "resource", "may", "to"), rows)


def security_powers() -> str:
    """Return which services have a right that could be used to get more."""
    return _table(("power", "who", "to"), security.powers())


def security_people() -> str:
    """Return what each role of people permits."""
    return _table(("role", "may, beside what a viewer may"), security.people())


def needs() -> str:
    """Return what a worker of each service asks its node for."""
    rows = [
        (f"`{service}`", need.cpu, need.memory, need.memory_limit, need.why)
        for service, need in NEEDS.items()
    ]
    return _table(("service", "CPU", "memory", "limit of memory", "because"), rows)


def alerts() -> str:
    """Return a section for each alert: what it says, when it fires, and what a person does."""
    return "\n\n".join(map(_alert, ALERTS))


def dashboard() -> str:
    """Return the questions that the dashboard answers, with its panels."""
    rows = [(question.title, "; ".join(panel.title for panel in question.panels)) for question in QUESTIONS]
    return _table(("question", "panels"), rows)


def _alert(alert: Alert) -> str:
    summary = re.sub(r"\{\{ (?:\$labels\.)?\$?(\w+)(?: \| \w+)? \}\}", r"<\1>", alert.summary)
    lasts = f"for {alert.seconds} s" if alert.seconds else "at once"
    return f"""## {alert.name}

{alert.severity.capitalize()}. {summary.replace("<", "`<").replace(">", ">`")}

**Do.** {alert.action}

It fires {lasts} while this holds:

```text
{alert.expression}
```"""


def event_topics() -> str:
    """Return the public topics, with their keys and what is kept."""
    rows = [
        (
            f"`{topic.name}`",
            topic.description,
            topic.key,
            topic.partitioned_by,
            str(topic.spec.partitions),
            _cleanup(topic),
        )
        for topic in TOPICS
        if topic.public
    ]
    return _table(("topic", "has", "key", "partitioned by", "partitions", "cleanup"), rows)


def event_types() -> str:
    """Return the types of events."""
    rows = [(f"`{name}`", f"`{row.__name__}`", text) for name, (row, text) in EVENT_TYPES.items()]
    return _table(("type (`ce_type`)", "data", "says"), rows)


def event_ends() -> str:
    """Return the reasons of last events."""
    return _table(("reason", "meaning"), [(f"`{name}`", text) for name, text in LAST_REASONS.items()])


def event() -> str:
    """Return the contract of the public events: the headers, and the fields of the value."""
    headers = _table(("header", "meaning"), [(f"`{name}`", text) for name, text in ATTRIBUTES.items()])
    parts = {"": ConditionEvent, "condition.": Condition, "cause.": EventCause, "task.": EventTask}
    fields = [row for before, type_ in parts.items() for row in _field_rows(type_, before)]
    documented = {"": ConditionEvent, "`cause`: ": EventCause, "`task`: ": EventTask}
    text = "\n\n".join(f"{name}{inspect.cleandoc(type_.__doc__ or '')}" for name, type_ in documented.items())
    return f"{headers}\n\n{text}\n\n{_table(('field of the value', 'left out when'), fields)}"


def _field_rows(type_: type, before: str) -> Iterator[tuple[str, str]]:
    for field in _fields(type_):
        yield f"`{before}{field.encode_name}`", "" if field.required else "empty"


def api_differences() -> str:
    """Return the differences from kube-apiserver, which random calls check."""
    rows = [(known.ours, known.reason) for known in KNOWN]
    return _table(("the embedded API server", "why, and kube-apiserver"), [*rows, *NOT_SENT])


def apiserver_shares() -> str:
    """Return what a user, all users and the server's own accounts may hold at once."""
    rooms = (shares.WATCHES, shares.REQUESTS, shares.BODIES, shares.ANSWERS)
    rows = [(room.what, *(_size(room, amount) for amount in room[1:])) for room in rooms]
    most = connections.CONNECTIONS_MAX
    rows.append(("connections", f"{most // connections.USER_PART:,}", f"{most:,}", f"{most:,}"))
    return _table(("what", "one user", "all users", "administrator and services"), rows)


def _size(room: shares.Room, amount: int) -> str:
    return f"{amount >> 20} MiB" if "bytes" in room.what else f"{amount:,}"


def apiserver_times() -> str:
    """Return how long the API server waits for clients, and what then happens."""
    closed, told = "closed", "408, and closed"
    slow = f"closed after {connections.SEND_SECONDS:.0f} s and 1 s per 100 KiB of the answer"
    rows = (
        ("a TLS handshake", accepting.HANDSHAKE_SECONDS, closed),
        ("the first head of a connection; the rest of any other one", connections.HEAD_SECONDS, told),
        ("the next request", connections.IDLE_SECONDS, closed),
        ("the next bytes of a body", connections.BODY_IDLE_SECONDS, told),
        ("a whole body", connections.BODY_SECONDS, told),
        ("a reader of an answer", connections.SEND_SECONDS, slow),
        ("a reader of a watch's events", frontend.SLOW_WATCHER_SECONDS, closed),
        ("what was sent before a connection was closed", connections.CLOSE_SECONDS, "discarded"),
        ("a peer that does not answer TCP's probes", accepting.SILENT_SECONDS, closed),
    )
    heads = ("waits for", "at most", "then")
    return _table(heads, [(what, f"{seconds:.0f} s", then) for what, seconds, then in rows])


def sizing_table() -> str:
    """Return what fleets of four sizes need, by the same arithmetic as `pvbus size`."""
    sizes = [sizing.Size(count, max(1.0, count / 10_000)) for count in (1_000, 10_000, 100_000, 1_000_000)]
    needed = [sizing.quantities(size, sizing.coefficients()) for size in sizes]
    rows = [
        (row[0].name, row[0].unit, *(sizing.amount_text(cell).replace("*", "\\*") for cell in row))
        for row in zip(*needed, strict=True)
    ]
    heads = [f"{size.variants:,}, {size.changes_per_second:g}/s" for size in sizes]
    return _table(("what", "unit", *heads), rows)


def sizing_coefficients() -> str:
    """Return each coefficient of `pvbus size` with its source."""
    rows = [
        (
            f"`{name}`",
            f"{each.value:g} {each.unit}",
            f"{each.variants:,}",
            each.source,
            each.date,
            each.machine,
        )
        for name, each in sizing.coefficients().items()
    ]
    return _table(("coefficient", "value", "measured with variants", "source", "date", "machine"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "topics": topics,
    "commands": commands,
    "settings": setting_tables,
    "metrics": metric_table,
    "event": event,
    "event-topics": event_topics,
    "event-types": event_types,
    "event-ends": event_ends,
    "rights": rights,
    "needs": needs,
    "security-people": security_people,
    "security-powers": security_powers,
    "alerts": alerts,
    "sizing": sizing_table,
    "sizing-coefficients": sizing_coefficients,
    "dashboard": dashboard,
    "api-differences": api_differences,
    "apiserver-shares": apiserver_shares,
    "apiserver-times": apiserver_times,
    **{f"states-{machine.name}": machine.table for machine in MACHINES},
}


def written(text: str) -> str:
    """Return a document with its generated parts as they should be."""
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found['name']]()}\n\n{found[3]}", text)


def differences() -> list[str]:
    """Return a line for each generated part that differs from the code."""
    lines = []
    for name in FILES:
        text = (ROOT / name).read_text()
        for found, wanted in zip(PART.finditer(text), PART.finditer(written(text)), strict=True):
            if found[0] != wanted[0]:
                lines.append(f"{name}: the part {found['name']!r} differs from the code")
    return lines


def main(arguments: Sequence[str]) -> int:
    if "--check" in arguments:
        found = differences()
        for line in found:
            print(f"{line}; run: python -m docs.generate", file=sys.stderr)
        return 1 if found else 0
    for name in FILES:
        (ROOT / name).write_text(written((ROOT / name).read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
