"""Settings of the processes: read once, at start, from `PVBUS_*` variables and an optional file.

A field `log_level` is the variable `PVBUS_LOG_LEVEL` and the key `logLevel` of the YAML file that
`PVBUS_CONFIG` names; a variable overrides the file. All problems are reported at once, including misspelt
names. Several services may share one file: each takes its own fields.
"""

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml

from pvbus.adapters.files import open_plain
from pvbus.core.errors import UsageError
from pvbus.core.unroll.removal import RemovalLimits

FILE_BYTES_MAX = 1 << 20  # a thousand times the size of usual settings
CONFIG_VARIABLE = "PVBUS_CONFIG"
_PREFIX = "PVBUS_"

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]
Sasl = Literal["", "scram-sha-256", "scram-sha-512", "oauthbearer"]


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of every process.

    log_level: `debug` also logs conflicts and waits. log_format: `auto` is columns on a terminal, JSON
    elsewhere.
    """

    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"


class KafkaConfig(ProcessConfig, frozen=True, kw_only=True, rename="camel"):
    """Connection to Kafka; ignored for a bus in a file.

    kafka_tls: whether connections are encrypted; the files below need it. kafka_ca_file: PEM of the CA of
    the brokers' certificates, "" for the machine's own CAs. kafka_certificate_file, kafka_key_file: ours,
    for brokers that require one; kafka_key_password_file if the key has a password. kafka_sasl: the
    authentication, "" for none; SCRAM takes kafka_username and kafka_password_file, and oauthbearer
    kafka_token_file, which is read again for each connection, as tokens are replaced. Secrets are in files
    and never in a variable: a process's environment is inherited by every program that it starts, and
    shown by `docker inspect`, by /proc and in crash reports; a file has an owner.

    kafka_replication: copies of each topic; 0 is three, or the number of brokers if that is less. With
    fewer than two, a disk failure loses acknowledged records. kafka_session_seconds: how long a worker may
    send no heartbeat before its leases move to others; if shorter, a pause of its machine costs a restore;
    if longer, the keys of a dead worker wait. Brokers accept 6 to 1800 by default.
    """

    kafka_tls: bool = False
    kafka_ca_file: str = ""
    kafka_certificate_file: str = ""
    kafka_key_file: str = ""
    kafka_key_password_file: str = ""
    kafka_sasl: Sasl = ""
    kafka_username: str = ""
    kafka_password_file: str = ""
    kafka_token_file: str = ""
    kafka_replication: Annotated[int, msgspec.Meta(ge=0, le=32_767)] = 0
    kafka_session_seconds: Annotated[float, msgspec.Meta(ge=3)] = 10.0


class ServiceConfig(KafkaConfig, frozen=True, kw_only=True, rename="camel"):
    """Settings of every service; ingest, render and inject have no settings of their own.

    bus: `sqlite:<path>`, or `kafka://HOST:PORT[,HOST:PORT...][/PREFIX]`; installations that share a Kafka
    cluster each have a prefix. kubeconfig: "" takes the pod's service account, else $KUBECONFIG or
    ~/.kube/config; context: of the kubeconfig, "" for the current one. health_host, health_port: address
    of /metrics, /healthz and /readyz; loopback by default, as they are not secret, but internal; port 0
    takes any free one, which the log names.
    """

    bus: str = "sqlite:.pvbus/bus.db"
    kubeconfig: str = ""
    context: str = ""
    health_host: str = "127.0.0.1"
    health_port: Port = 0


class UnrollConfig(ServiceConfig, frozen=True, kw_only=True, rename="camel"):
    """Limits of removals, for all sets; a set's annotations may replace those of the guard.

    removal_quiet_seconds: removals of a set are ordered once none was added for this long; if shorter, an
    ongoing accident is not seen as a whole; if longer, removals lag. removals_max, removals_share: if a set
    has more removals within ten minutes than both (the share is of its children before), they are held for
    confirmation.
    """

    removal_quiet_seconds: Annotated[float, msgspec.Meta(ge=0, le=600)] = 5.0
    removals_max: Annotated[int, msgspec.Meta(ge=0)] = 5
    removals_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1

    @property
    def limits(self) -> RemovalLimits:
        return RemovalLimits(self.removal_quiet_seconds, self.removals_max, self.removals_share)


class ConditionsConfig(ServiceConfig, frozen=True, kw_only=True, rename="camel"):
    """source: `ce_source` of the events, a URI reference that identifies the installation."""

    source: str = "/pvbus"


class ServicesConfig(UnrollConfig, frozen=True, kw_only=True, rename="camel"):
    """Several services in one process, for `pvbus run` and `pvbus up`."""

    source: str = "/pvbus"


FunctionEngine = Literal["", "auto", "podman", "docker", "nerdctl"]


class ApiServerConfig(ProcessConfig, frozen=True, kw_only=True, rename="camel"):
    """The embedded API server with its package store.

    functions: image (with or without its tag, or its bare name) to a command line, or to
    `builtin:<name>`; in a variable as YAML. allow_exec: whether a Kptfile may name a command line itself,
    which then runs with the rights of this process. isolate_functions: whether these programs run without
    network, where Linux permits user namespaces. function_engine: runs the images that are neither mapped nor
    built in; auto takes the first that is there. function_runner: HOST:PORT of Porch's function runner, for
    the images that are left; needs the extra `pvbus[grpc]`. fetch_seconds: between fetches of a remote;
    poll_seconds: between checks of the refs of a repository on this machine.
    """

    functions: Mapping[str, str] = {}
    allow_exec: bool = False
    isolate_functions: bool = True
    function_engine: FunctionEngine = ""
    function_runner: str = ""
    fetch_seconds: Seconds = 60.0
    poll_seconds: Seconds = 2.0


SERVICE_CONFIGS: Mapping[str, type[ServiceConfig]] = {
    "ingest": ServiceConfig,
    "unroll": UnrollConfig,
    "render": ServiceConfig,
    "inject": ServiceConfig,
    "conditions": ConditionsConfig,
}
_ALL: tuple[type[ProcessConfig], ...] = (*SERVICE_CONFIGS.values(), ServicesConfig, ApiServerConfig)

_C = TypeVar("_C", bound=ProcessConfig)


def load_config(type_: type[_C], environment: Mapping[str, str] | None = None) -> _C:
    """Read the settings of a process. Raises UsageError that lists every problem."""
    environment = os.environ if environment is None else environment
    path = environment.get(CONFIG_VARIABLE, "")
    problems = list(_mistyped(environment))
    given = _read(path, problems) if path else {}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(type_):
        variable = variable_of(field.name)
        if variable in environment:
            where, value = variable, _from_text(environment[variable], field.type)
        elif field.encode_name in given:
            where, value = f"{path}: {field.encode_name}", given[field.encode_name]
        else:
            continue
        try:
            values[field.name] = msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError as exc:
            problems.append(f"{where}: {_wanted(field.type) or exc} (given: {value!r})")
    if problems:
        raise UsageError("invalid configuration:\n  " + "\n  ".join(problems))
    return type_(**values)


def settings_text(type_: type[ProcessConfig]) -> str:
    """Return a line for each setting of a process: its variable, and its default if it has one."""
    fields = msgspec.structs.fields(type_)
    width = max(len(variable_of(field.name)) for field in fields)
    lines = [f"  {variable_of(field.name):{width}}  {_shown(field.default)}".rstrip() for field in fields]
    return "\n".join([*lines, f"  {CONFIG_VARIABLE:{width}}  a YAML file with any of them: logLevel: debug"])


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def variable_of(field: str) -> str:
    """Return the environment variable of a setting."""
    return _PREFIX + field.upper()


def _read(path: str, problems: list[str]) -> Mapping[str, Any]:
    try:
        with open_plain(Path(path)) as stream:
            found = yaml.safe_load(stream.read(FILE_BYTES_MAX).decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, UsageError) as exc:
        problems.append(f"{CONFIG_VARIABLE}: cannot read {path}: {exc}")
        return {}
    if found is None:
        return {}
    if not isinstance(found, dict):
        problems.append(f"{path}: must be a mapping of settings")
        return {}
    known = {field.encode_name for field in _fields()}
    problems += [
        f"{path}: {name}: unknown setting{_meant(str(name), known)}" for name in found if name not in known
    ]
    return found


def _fields() -> Iterator[msgspec.structs.FieldInfo]:
    """Yield the settings of all processes."""
    for type_ in _ALL:
        yield from msgspec.structs.fields(type_)


_KAFKA_PREFIX = _PREFIX + "KAFKA_"
_LINK = re.compile(_KAFKA_PREFIX + r"(SERVICE|PORT)(_|$)")
"""Variables that Kubernetes sets in every pod if there is a Service `pvbus-kafka`."""


def _mistyped(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems of variable names.

    A misspelt variable can disable encryption or the guard of removals. A name unlike every setting belongs
    to another program, except under PVBUS_KAFKA_: there it may be a setting's name in another Kafka client.
    """
    known = {variable_of(field.name) for field in _fields()} | {CONFIG_VARIABLE}
    for name in sorted(name for name in environment if name.startswith(_PREFIX) and name not in known):
        meant = _meant(name, known)
        if meant or (name.startswith(_KAFKA_PREFIX) and not _LINK.match(name)):
            yield f"{name}: unknown setting{meant}"


def _meant(name: str, known: set[str]) -> str:
    """Return a suggestion for a misspelt name, "" if none is close; the common prefix does not count."""
    names = {each.removeprefix(_PREFIX): each for each in known}
    close = get_close_matches(name.removeprefix(_PREFIX), sorted(names), n=1, cutoff=0.8)
    return f"; did you mean {names[close[0]]}?" if close else ""


def _wanted(type_: Any) -> str:
    """Return the valid values of a setting in words, "" if msgspec's error is clear enough."""
    if type_ is bool:
        return "must be true or false"
    if get_origin(type_) is Literal:
        return f"must be {' or '.join(choice or 'nothing' for choice in get_args(type_))}"
    return ""


def _from_text(text: str, type_: Any) -> Any:
    """Return the value in a variable: its text; a mapping is YAML."""
    if get_origin(type_) is Mapping:
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    return text
