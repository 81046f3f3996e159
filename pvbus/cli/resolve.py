"""`pvbus resolve`: decides from files which version of which package is installed where, and when."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from pvbus.adapters.manifests import read_manifests
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.platforms import platform_option, platforms_of
from pvbus.cli.resolvefiles import read_input
from pvbus.core.errors import UsageError
from pvbus.core.platform.solver.model import Outcome, Policy, Problem, Resolution, VersionPolicy
from pvbus.core.platform.solver.resolving import resolve as resolved
from pvbus.core.platform.solver.states import DependencyReport, dependencies_of
from pvbus.core.platform.solver.transaction import Action, actions_of
from pvbus.core.platform.solver.wording import requirement_words, shown

POLICIES: tuple[VersionPolicy, ...] = ("highest", "minimal-change", "lowest-satisfying", "pinned")


@click.command(
    short_help="Choose versions of packages that depend on each other.",
    epilog="""\b
Examples:
  pvbus resolve -f packages/
  pvbus resolve -f packages/ --explain --platform crossplane=2.0.1
  pvbus resolve -f packages/ --policy minimal-change --output json
  pvbus resolve -f packages/ --graph mermaid
""",
)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A file or a folder of manifests; may be given several times.",
)
@click.option("--explain", is_flag=True, help="Show every reason, and the state of each dependency.")
@click.option("--graph", type=click.Choice(["mermaid", "dot"]), help="Print the solution as a graph instead.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--policy", type=click.Choice(POLICIES), default="highest", show_default=True)
@click.option("--downgrades", is_flag=True, help="Allow versions below the installed ones.")
@click.option("--search", is_flag=True, help="Install the only package that provides a needed API.")
@click.option("--ignore-platforms", is_flag=True, help="Ignore the platform's versions that packages need.")
@platform_option
@click.option(
    "--unneeded",
    type=click.Choice(["orphan", "delete"]),
    default="orphan",
    show_default=True,
    help="What happens with installed packages that nobody needs any more.",
)
def resolve(
    files: tuple[Path, ...],
    explain: bool,
    graph: str | None,
    output: str,
    policy: VersionPolicy,
    downgrades: bool,
    search: bool,
    ignore_platforms: bool,
    platforms: tuple[str, ...],
    unneeded: Any,
) -> None:
    """Choose versions of packages that depend on each other; nothing is installed.

    The manifests have the packages there are (meta.pkg.crossplane.io; Package of data.packaging.carvel.dev),
    what users want (Provider, Configuration and Function of pkg.crossplane.io; PackageInstall), and what is
    there (status of these, Lock, CustomResourceDefinition). docs/dependencies.md names their fields.

    \b
    --policy says what is chosen among what is possible:
      highest            the highest version
      minimal-change     the fewest installed packages change, each as little as possible
      lowest-satisfying  the lowest version, but none below the installed one
      pinned             nothing that is installed changes

    What is impossible is quarantined with a reason, and everything else goes on.

    Exit codes: 0 every install is granted, 1 one is not, 2 the manifests or options have an error.
    """
    if graph is not None and output != "text":
        raise UsageError("--graph excludes --output: a graph is a text of its own")
    chosen_policy = Policy(
        versions=policy,
        downgrades=downgrades,
        search=search,
        ignore_platforms=ignore_platforms,
        unneeded=unneeded,
    )
    found = read_input(read_manifests(files), platforms_of(platforms), chosen_policy)
    if found.problems:
        raise UsageError("the manifests have errors:\n" + "\n".join(map(str, found.problems)))
    resolution = resolved(found.problem)
    actions = actions_of(found.problem, resolution)
    if graph is not None:
        click.echo("\n".join(_mermaid(resolution) if graph == "mermaid" else _dot(resolution)))
    elif output != "text":
        emit(_document(found.problem, resolution, actions), output)
    else:
        _print(found.problem, resolution, actions, explain=explain)
    sys.exit(0 if all(each.status == "granted" for each in resolution.outcomes) else 1)


def _print(problem: Problem, resolution: Resolution, actions: Sequence[Action], *, explain: bool) -> None:
    if actions:
        rows = [
            (
                str(each.step),
                each.action,
                shown((each.target, each.package)),
                each.before or "-",
                each.after or "-",
            )
            for each in actions
        ]
        columns(("STEP", "ACTION", "PACKAGE", "INSTALLED", "CHOSEN"), rows)
    for cycle in resolution.cycles:
        click.echo(
            f"cycle: {', '.join(shown(location) for location in cycle)} need each other: they are one step"
        )
    states = dependencies_of(problem, resolution) if explain else ((),) * len(resolution.outcomes)
    for outcome, reports in zip(resolution.outcomes, states, strict=True):
        if outcome.status != "granted":
            _print_refusal(outcome, explain=explain)
        for report in reports:
            click.echo(f"{_name(outcome)}: {_report_words(report)}")
    granted = sum(each.status == "granted" for each in resolution.outcomes)
    click.echo(
        f"{granted} of {len(resolution.outcomes)} installs granted", err=granted < len(resolution.outcomes)
    )


def _name(outcome: Outcome) -> str:
    return shown((outcome.wish.target, outcome.wish.package))


def _print_refusal(outcome: Outcome, *, explain: bool) -> None:
    if outcome.explanation is None:
        click.echo(f"{_name(outcome)}: {outcome.status}: the search was given up")
        return
    click.echo(f"{_name(outcome)}: {outcome.status}: {outcome.explanation.sentence}")
    if explain:
        for reason in outcome.explanation.reasons:
            click.echo(f"  because {reason}")


def _report_words(report: DependencyReport) -> str:
    words = f"{requirement_words(report.requirement)}: {report.state}"
    if report.provider:
        return f"{words} {shown((report.target, report.provider), report.version)}"
    return f"{words}: {', '.join(report.candidates)}" if report.candidates else words


def _document(problem: Problem, resolution: Resolution, actions: Sequence[Action]) -> dict[str, Any]:
    """Return the solution as plain values."""
    outcomes = []
    for outcome, reports in zip(resolution.outcomes, dependencies_of(problem, resolution), strict=True):
        dependencies = [
            {
                "needs": requirement_words(each.requirement),
                "optional": each.requirement.optional,
                "state": str(each.state),
                "target": each.target,
                "package": each.provider,
                "version": each.version,
                "candidates": list(each.candidates),
            }
            for each in reports
        ]
        outcomes.append(
            {
                "package": outcome.wish.package,
                "target": outcome.wish.target,
                "status": outcome.status,
                "version": outcome.version,
                "reason": outcome.explanation.sentence if outcome.explanation else "",
                "because": list(outcome.explanation.reasons) if outcome.explanation else [],
                "dependencies": dependencies,
            }
        )
    return {
        "installs": outcomes,
        "actions": msgspec.to_builtins(actions),
        "cycles": [[shown(location) for location in cycle] for cycle in resolution.cycles],
        "components": resolution.components,
        "unproven": resolution.unproven,
    }


def _edges(resolution: Resolution) -> Iterator[tuple[str, str, str]]:
    """Yield the dependencies that packages meet: holder, provider, and the dependency itself."""
    for each in resolution.chosen:
        for edge in each.edges:
            if edge.status == "met":
                holder, provider = shown((each.target, each.package)), shown((edge.target, edge.provider))
                yield holder, provider, requirement_words(edge.requirement)


def _labels(resolution: Resolution) -> dict[str, str]:
    locations = [((each.target, each.package), each.version) for each in resolution.chosen]
    return {shown(location): shown(location, version) for location, version in locations}


def _mermaid(resolution: Resolution) -> Iterator[str]:
    yield "flowchart LR"
    ids = {name: f"n{index}" for index, name in enumerate(_labels(resolution))}
    for name, label in _labels(resolution).items():
        yield f'  {ids[name]}["{_plain(label)}"]'
    for holder, provider, words in _edges(resolution):
        yield f'  {ids[holder]} -->|"{_plain(words)}"| {ids[provider]}'


def _plain(text: str) -> str:
    """Return a text that a label can have in quotation marks."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _dot(resolution: Resolution) -> Iterator[str]:
    yield "digraph packages {"
    yield "  rankdir=LR;"
    for name, label in _labels(resolution).items():
        yield f"  {_quoted(name)} [label={_quoted(label)}];"
    for holder, provider, words in _edges(resolution):
        yield f"  {_quoted(holder)} -> {_quoted(provider)} [label={_quoted(words)}];"
    yield "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
