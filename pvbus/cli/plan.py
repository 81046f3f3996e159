"""`pvbus plan`: previews the writes that would be made, held or refused, from files or a live system.

With `-o json` stdout is one document and nothing else; logs and progress go to stderr.
"""

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from pvbus.cli.datafolder import DEFAULT
from pvbus.cli.objectnames import Scope, named, namespace_option
from pvbus.cli.output import FORMATS, emit
from pvbus.cli.plancost import coefficients, cost_of, cost_words, gate_words, gates_of
from pvbus.cli.plandocument import Document, troubles
from pvbus.cli.planfile import PlanFile, plan_file, write_plan
from pvbus.cli.plangroups import Selection, narrowed
from pvbus.cli.planinput import read_input
from pvbus.cli.planpreview import Plan, Progress, Request, plan_of_files, plan_of_live, settings
from pvbus.cli.planrollouts import rollout_lines, rollouts_after
from pvbus.cli.planscreen import screen_lines
from pvbus.cli.plantext import plan_lines, summary
from pvbus.cli.progress import SET
from pvbus.cli.reading import files_option
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.errors import PermanentError, UsageError
from pvbus.runtime.preview.run import Only
from pvbus.telemetry.logs import configure

FAILED, CHANGED = 1, 3
PROGRESS_SECONDS = (2.0, 2.0)  # until the first message, and between two: short plans print none


@click.command(
    short_help="Preview every write of some manifests.",
    epilog="""\b
Examples:
  pvbus plan -f manifests/                         what a folder of manifests would lead to, alone
  pvbus plan --data .pvbus -f changes.yaml         what changes would lead to in `pvbus up`
  pvbus plan --kubeconfig ~/.kube/config           what the services have still to do in a cluster
  pvbus plan --data .pvbus --delete cluster/default/edge-1
  pvbus plan --data .pvbus -f changes.yaml --out p.json      then: pvbus apply p.json
  pvbus export --data .pvbus -o live.json          for CI, where no cluster can be reached:
  pvbus plan -f live.json -f changes.yaml --check

\b
Exit codes: 0 done; 1 something failed or is missing; 2 bad usage.
With --check: 0 nothing to do; 1 failed, stalled or held; 3 there are changes.
""",
)
@files_option(
    "Manifests or exports: a file or a folder. With a live system or an export they are changes: each object "
    "replaces the one of its kind, namespace and name."
)
@click.option("--data", help="Plan against the live `pvbus up` of this data folder.")
@click.option("--kubeconfig", help="Plan against this cluster. It is only read.")
@click.option(
    "--delete",
    "deleted",
    multiple=True,
    metavar="KIND/NAMESPACE/NAME",
    help="Plan as if this object were deleted. Repeatable.",
)
@click.option("--only", type=click.Choice(["sets", "variants"]), help="Run one controller, once.")
@click.option("--set", "set_name", metavar="[NAMESPACE/]SET", help="Show only the variants of this set.")
@click.option("-l", "--selector", default="", help="Show only variants with these labels, as for kubectl.")
@namespace_option
@click.option("--details", is_flag=True, help="List every write, not groups of equal ones.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the plan to this file, for `pvbus apply FILE`.",
)
@click.option("--check", is_flag=True, help="Tell by the exit code whether there is anything to do.")
@click.option(
    "--render",
    is_flag=True,
    help="Also show the diff of package files, after their pipelines (built-in functions): of one package "
    "of each group, of all with --details.",
)
def plan(
    files: tuple[Path, ...],
    data: str | None,
    kubeconfig: str | None,
    deleted: tuple[str, ...],
    only: Only | None,
    set_name: str | None,
    selector: str,
    namespace: str | None,
    details: bool,
    output: str,
    out: Path | None,
    check: bool,
    render: bool,
) -> None:
    """Preview every write that the services would make, with field differences and reasons.

    It fits a screen: the summary, then errors, conflicts and removals, then equal writes in groups, each
    with one example. --details lists every write.

    With --data or --kubeconfig it reads what is there, applies the files to a copy in memory, and lets
    the services decide on it: nothing is ever written to the live system. Without, the files are the whole
    cluster: sets, the objects that they select, and Repositories. Upstream packages that are not among the
    files are read from the git repositories of those Repositories.

    With a live system or an export it also says which waves, holds, checks and windows of its RolloutPolicies
    the changes pass, and what a quarantine, a hold or a stop keeps.
    """
    is_live = bool(data or kubeconfig)
    if not files and not is_live:
        raise UsageError(
            "nothing to plan: give manifests (-f FILE), a live system (--data DIR or --kubeconfig FILE), "
            "or both"
        )
    if data and kubeconfig:
        raise UsageError("--data and --kubeconfig are two live systems: give one of them")
    configure("error")
    given = read_input(files)
    if is_live and given.exports:
        raise UsageError("an export stands for a live system: give either it, or --data or --kubeconfig")
    selection = _selection(set_name, selector, Scope(namespace, data or DEFAULT, kubeconfig))
    if out is not None and (selection is not None or only is not None):
        raise UsageError("--out writes a whole plan: leave out --set, -n, -l and --only")
    request = Request(
        given,
        settings(),
        only,
        deleted,
        render,
        progress_printer(),
        has_states=out is not None,
        is_whole=output != "text" or render,
    )
    made = plan_of_live(request, data, kubeconfig) if is_live else plan_of_files(request)
    if out is not None:
        write_out(out, made)
    document = selected(made.document, selection) if selection is not None else made.document
    if made.inputs is not None and selection is None and only is None:
        try:
            document["rollouts"] = rollouts_after(made.inputs, data, kubeconfig)
        except PermanentError as exc:  # rights on these kinds are promotion's, which may be others'
            document["notes"].append(f"what rollouts make of this is not known: {exc}")
    _print(document, output, details=details)
    sys.exit(exit_code(document, check=check))


def _print(document: Document, output: str, *, details: bool) -> None:
    if output == "text":
        _print_text(plan_lines(document) if details else screen_lines(document))
        _print_text(rollout_lines(document.get("rollouts", ())))
    elif output == "json":  # on one line: the document of a fleet is large
        json.dump(document, sys.stdout, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        emit(msgspec.to_builtins(document), output)


def write_out(path: Path, made: Plan) -> None:
    """Write a plan to a file. Raises UsageError if it cannot be applied, and PermanentError."""
    plan = write_plan(path, file_of(made))
    words = f"plan {plan.checksum} is in {path}: {cost_words(plan.cost)}; to apply it: pvbus apply {path}"
    lines = [words, *(f"  then still to pass: {gate}" for gate in gate_words(plan.gates))]
    print("\n".join(lines), file=sys.stderr)


def file_of(made: Plan) -> PlanFile:
    """Return the file of a plan. Raises UsageError if the plan cannot be applied."""
    if made.document.get("errors"):
        raise UsageError(f"--out: this plan cannot be applied: {made.document['errors'][0]}")
    if made.inputs is None:
        raise UsageError(
            "--out needs a live system to apply the plan to: give --data DIR, --kubeconfig FILE or an export"
        )
    changes = len(made.inputs.objects) + len(made.inputs.deletions)
    return plan_file(
        made.inputs,
        made.result,
        made.document,
        gates=gates_of(made.document, made.result.objects),
        cost=cost_of(made.document, changes, coefficients()),
        summary=summary(made.document),
    )


def _selection(set_name: str | None, selector: str, scope: Scope) -> Selection | None:
    """Return the part of the plan that the options choose, None for all. Raises UsageError."""
    if not set_name and not selector and not scope.namespace:
        return None
    try:
        labels = parse_label_selector(selector) if selector else None
    except ValueError as exc:
        raise UsageError(f"-l {selector}: {exc}") from exc
    key = str(named((set_name,), (SET,), scope).key) if set_name else ""
    given = (("--set", set_name), ("-n", scope.namespace), ("-l", selector))
    text = " ".join(f"{option} {value}" for option, value in given if value)
    return Selection(key, scope.namespace or "", labels, text)


def selected(document: Document, selection: Selection) -> Document:
    """Return a part of a plan. Raises UsageError if it has no variant: that is mistyped."""
    variants = document["variants"]
    part = narrowed(document, selection)
    if not part["variants"] and not document.get("errors"):
        raise UsageError(f"{selection.text}: matches none of the {len(variants)} variants in this plan")
    return {**part, "troubles": troubles(part)}


def exit_code(document: Document, *, check: bool) -> int:
    """Return the exit code of the command."""
    if document.get("errors"):
        return FAILED
    if not check:
        return 0
    if document["troubles"] or document["held"]:
        return FAILED
    return CHANGED if document["actions"] else 0


def progress_printer(command: str = "plan") -> Progress:
    """Return a function that prints progress to stderr if the work takes long."""
    first, between = PROGRESS_SECONDS
    due = time.monotonic() + first

    def say(words: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + between
            print(f"{command}: {words} ...", file=sys.stderr, flush=True)

    return say


def _print_text(lines: Iterable[str]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(line)
