"""Bad input and faults: one table of what is done, what is then told where, and what must not be lost.

A message says what is wrong, where, and what to do about it; `told` is what it must contain. `kept` says
in words what the deed checks (see `deeds`): whatever it finds missing fails the row.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from tests.e2e.faults import scenarios
from tests.e2e.faults.scenarios import Reported
from tests.e2e.faults.world import NAMESPACE, NamespaceWorld
from tests.kit.cluster import resource_of
from tests.tools.installation import Installation

SETTINGS = {"PVBUS_REMOVAL_QUIET_SECONDS": "0.3", "PVBUS_POLL_SECONDS": "0.3"}


class Fault(NamedTuple):
    """A row. told: pieces of text, each of which must be found, in this order, at the place `where`."""

    name: str
    scenario: Callable[[NamespaceWorld], Awaitable[Reported]]
    where: str
    reported: tuple[str, ...]
    retained: str


UPSTREAM = {"repo": "blueprints", "package": "base", "revision": 1}
EDGE = {"repositories": [{"name": "edge"}]}


def invalid(name: str, reported: str, spec: Mapping[str, Any]) -> Fault:
    """A row of the sets' validation."""
    scenario = partial(scenarios.set_stalls, spec=spec)
    return Fault(name, scenario, "condition Stalled of the set", (reported,), "nothing is made for this set")


def target(name: str, reported: str, *targets: Mapping[str, Any]) -> Fault:
    return invalid(name, reported, {"upstream": UPSTREAM, "targets": list(targets)})


def template(name: str, reported: str, **fields: Any) -> Fault:
    return target(name, f"spec.targets[0].template{reported}", {**EDGE, "template": fields})


def expression(name: str, reported: str, text: str) -> Fault:
    scenario = partial(scenarios.expression_breaks, expression=text)
    where = ("template.downstream.packageExpr: ", reported)
    return Fault(name, scenario, "condition Stalled of the set", where, "the variants made before")


BOTH_KEYS = [{"key": "a", "keyExpr": "'a'", "value": "b"}]
BOTH_VALUES = [{"key": "a", "value": "b", "valueExpr": "'b'"}]

VALIDATION = (
    invalid("no upstream", "spec.upstream is a required field", {"targets": [EDGE]}),
    invalid(
        "no upstream package",
        "spec.upstream.package is a required field",
        {"upstream": {"repo": "blueprints", "revision": 1}, "targets": [EDGE]},
    ),
    invalid(
        "no upstream repo",
        "spec.upstream.repo is a required field",
        {"upstream": {"package": "base", "revision": 1}, "targets": [EDGE]},
    ),
    invalid(
        "no upstream revision",
        "either spec.upstream.revision or spec.upstream.workspaceName must be specified",
        {"upstream": {"repo": "blueprints", "package": "base"}, "targets": [EDGE]},
    ),
    target("no targets", "must specify at least one item in spec.targets"),
    target(
        "a target that selects nothing",
        "spec.targets[0] must specify one of `repositories`, `repositorySelector`, or `objectSelector`",
        {},
    ),
    target(
        "a target that selects twice",
        "spec.targets[0] must specify one of `repositories`, `repositorySelector`, or `objectSelector`",
        {**EDGE, "repositorySelector": {"matchLabels": {"a": "b"}}},
    ),
    target(
        "an empty list of repositories",
        "spec.targets[0].repositories must not be an empty list",
        {"repositories": []},
    ),
    target(
        "a repository without name",
        "spec.targets[0].repositories[0].name cannot be empty",
        {"repositories": [{"name": ""}]},
    ),
    target(
        "an empty package name",
        "spec.targets[0].repositories[0].packageNames[1] cannot be empty",
        {"repositories": [{"name": "edge", "packageNames": ["a", ""]}]},
    ),
    target(
        "a selector without apiVersion",
        "spec.targets[0].objectselector.apiVersion cannot be empty",
        {"objectSelector": {"kind": "ConfigMap"}},
    ),
    target(
        "a selector without kind",
        "spec.targets[0].objectselector.kind cannot be empty",
        {"objectSelector": {"apiVersion": "v1"}},
    ),
    template(
        "another adoption policy",
        '.adoptionPolicy can only be "adoptNone" or "adoptExisting"',
        adoptionPolicy="x",
    ),
    template(
        "another deletion policy", '.deletionPolicy can only be "orphan" or "delete"', deletionPolicy="x"
    ),
    template(
        "two repos",
        " may specify only one of `downstream.repo` and `downstream.repoExpr`",
        downstream={"repo": "a", "repoExpr": "'a'"},
    ),
    template(
        "two packages",
        " may specify only one of `downstream.package` and `downstream.packageExpr`",
        downstream={"package": "a", "packageExpr": "'a'"},
    ),
    template(
        "two keys of a label",
        ".labelExprs[0] may specify only one of `key` and `keyExpr`",
        labelExprs=BOTH_KEYS,
    ),
    template(
        "two values of a label",
        ".labelExprs[0] may specify only one of `value` and `valueExpr`",
        labelExprs=BOTH_VALUES,
    ),
    template(
        "two keys of an annotation",
        ".annotationExprs[0] may specify only one of `key`",
        annotationExprs=BOTH_KEYS,
    ),
    template(
        "two values of an annotation",
        ".annotationExprs[0] may specify only one of `value`",
        annotationExprs=BOTH_VALUES,
    ),
    template(
        "two keys of data",
        ".packageContext.dataExprs[0] may specify only one of `key`",
        packageContext={"dataExprs": BOTH_KEYS},
    ),
    template(
        "two values of data",
        ".packageContext.dataExprs[0] may specify only one of `value`",
        packageContext={"dataExprs": BOTH_VALUES},
    ),
    template(
        "two keys of a function's configuration",
        ".pipeline.mutators[0].configMapExprs[0] may specify only one of `key`",
        pipeline={"mutators": [{"image": "set-labels", "configMapExprs": BOTH_KEYS}]},
    ),
    template(
        "two names of an injector",
        ".injectors[0] may specify only one of `name` and `nameExpr`",
        injectors=[{"name": "a", "nameExpr": "'a'"}],
    ),
    template(
        "no name of an injector",
        ".injectors[0] must specify either `name` or `nameExpr`",
        injectors=[{"kind": "Site"}],
    ),
    template(
        "a function without image",
        ".pipeline.mutators[0].image must not be empty",
        pipeline={"mutators": [{"name": "a", "image": ""}]},
    ),
    template(
        "a function with a dot in its name",
        ".pipeline.validators[0].name must not contain '.'",
        pipeline={"validators": [{"image": "a", "name": "a.b"}]},
    ),
    invalid(
        "several problems at once",
        "spec.upstream.package is a required field; spec.upstream.repo is a required field; either "
        "spec.upstream.revision or spec.upstream.workspaceName must be specified; must specify at least one",
        {"upstream": {}, "targets": []},
    ),
)

MISSPELT = """\
apiVersion: config.porch.kpt.dev/v1alpha2
kind: PackageVariantSet
metadata:
  name: misspelt
spec:
  upstreem:
    repo: blueprints
"""

FAULTS = (
    Fault(
        "invalid YAML in a file",
        partial(scenarios.manifest_refused, text="kind: PackageVariantSet\nspec: [1, 2\n"),
        "stderr of pvbus up, exit code 2",
        ("manifests.yaml", "not valid YAML", "line"),
        "nothing was started",
    ),
    Fault(
        "invalid YAML in a request",
        partial(scenarios.body_refused, body="kind: [PackageVariantSet\n"),
        "400 of the API server",
        ("400 ", "not valid YAML", "line 2"),
        "what is stored",
    ),
    Fault(
        "an object without a kind",
        partial(scenarios.manifest_refused, text="apiVersion: v1\nmetadata: {name: a}\n"),
        "stderr of pvbus up, exit code 2",
        ("manifests.yaml, document 2", "has no kind"),
        "nothing was started",
    ),
    Fault(
        "an unknown field in a file",
        partial(scenarios.manifest_refused, text=MISSPELT),
        "stderr of pvbus up, exit code 2",
        ("manifests.yaml, document 2", "PackageVariantSet misspelt", 'unknown field "spec.upstreem"'),
        "a mistyped field is not silently left out",
    ),
    Fault(
        "an unknown field in a request",
        partial(scenarios.body_refused, body=MISSPELT),
        "400 of the API server",
        ("400 ", 'unknown field "spec.upstreem"'),
        "what is stored",
    ),
    Fault(
        "a field of another type",
        partial(scenarios.refused_write, spec={"upstream": UPSTREAM, "targets": "all"}),
        "422 of the API server",
        ("spec.targets: Invalid value", "must be of type array"),
        "what is stored",
    ),
    *VALIDATION,
    expression("CEL that does not parse", "Syntax error", "target.name +"),
    expression("CEL with a sixth variable", "undeclared reference to 'cluster'", "cluster.name"),
    expression("CEL that divides by zero", "division by zero", "string(1 / 0)"),
    expression("CEL that gives a list", "type conversion error from list to 'string'", "[target.name]"),
    expression(
        "CEL that loops over 10,000 elements four deep",
        "actual cost limit exceeded: the expression costs at least",
        "target.annotations.all(a, target.annotations.all(b, target.annotations.all(c,"
        " target.annotations.all(d, true)))) ? 'x' : 'y'",
    ),
    Fault(
        "a selector that matches nothing",
        scenarios.nothing_selected,
        "condition TargetsApplied of the set",
        ("TargetsApplied", "NothingSelected", "no target selects anything", "spec.targets"),
        "it is no error",
    ),
    Fault(
        "a selector that suddenly matches nothing",
        scenarios.suddenly_nothing,
        "condition DeletionHeld of the set, and pvbus explain",
        ("DeletionHeld=True", "14 deletions are held", "pvbus.dev/confirm-deletion=", "to confirm"),
        "every variant, until its removal was confirmed",
    ),
    Fault(
        "a selector that suddenly matches everything",
        scenarios.suddenly_everything,
        "condition DeletionHeld of the set, and pvbus explain",
        ("DeletionHeld=True", "16 deletions are held", "pvbus.dev/confirm-deletion=", "to confirm"),
        "every variant, until its removal was confirmed; the one that was meant for ever",
    ),
    Fault(
        "a Repository that vanishes",
        scenarios.repository_vanishes,
        "condition Ready of the variant",
        ("Ready=False", 'no Repository named "edge" in namespace'),
        "the variant and its branch; no second draft when it comes back",
    ),
    Fault(
        "the upstream's Repository vanishes",
        scenarios.upstream_vanishes,
        "condition Stalled of the set",
        (
            "Stalled=True (UpstreamNotFound)",
            "could not find upstream package revision 'base/1' in repo 'blueprints'",
        ),
        "the variant and its draft",
    ),
    Fault(
        "a git remote that is down",
        scenarios.remote_is_down,
        "condition Ready of the Repository and of the variant",
        (
            "Ready=False",
            "cannot reach the remote: check the address",
            "variant: Ready=False",
            "cannot reach the remote",
        ),
        "the variants of other repositories are made",
    ),
    Fault(
        "a git repository that is moved away",
        scenarios.remote_moves_away,
        "condition Ready of the Repository",
        ("Ready=False", "does not exist: create the repository", "correct spec.git.repo"),
        "variants and drafts, in the API and in git",
    ),
    Fault(
        "a git remote that refuses the push",
        scenarios.push_refused,
        "condition Ready of the variant",
        ("Ready=False", "a hook of the remote repository refused the push", "frozen until Monday"),
        "the drafts that are there; what was refused is made when the hook agrees",
    ),
    Fault(
        "a git remote that moved under us",
        scenarios.remote_moved_under_us,
        "condition Ready of the variant",
        ("Ready=True",),
        "what a person pushed to the draft and to main, and the change of the set",
    ),
    Fault(
        "an upstream tag that moves",
        scenarios.upstream_tag_moves,
        "condition Ready of the variant",
        ("Ready=True",),
        "what a person pushed to the draft, and the new content of the tag",
    ),
    Fault(
        "a package without Kptfile",
        scenarios.no_kptfile,
        "condition Stalled of the set, and Ready of the Repository",
        (
            "could not find upstream package revision 'raw/1'",
            "without a Kptfile",
            "refs/tags/raw/v1",
            "Add a Kptfile",
        ),
        "with a Kptfile it works",
    ),
    Fault(
        "a package whose Kptfile is broken",
        scenarios.broken_kptfile,
        "condition Ready of the variant",
        ("Ready=False", 'upstream package revision "blueprints.bad.v1" cannot be cloned', "yaml: line 2"),
        "variants of the repository's other packages are made",
    ),
    Fault(
        "a full disk at the start",
        scenarios.disk_full_at_start,
        "stderr of pvbus up, exit code 1",
        ("error: ", "disk"),
        "the folder works once there is room",
    ),
    Fault(
        "a disk that fills up",
        scenarios.disk_full_while_running,
        "the answer of the API server",
        ("could not be stored in", "objects.db", "make room on the disk"),
        "every answered write",
    ),
    Fault(
        "a second pvbus up on the same folder",
        scenarios.second_up,
        "stderr of pvbus up, exit code 1",
        ("is in use by another pvbus (process ", "stop that one first, or choose another folder with --data"),
        "the first one goes on",
    ),
    Fault(
        "a port that is in use",
        scenarios.port_in_use,
        "stderr of pvbus up, exit code 1",
        ("port", "in use", "--port"),
        "",
    ),
    Fault(
        "kill -9 of pvbus up",
        scenarios.killed,
        "nothing is told: it starts as if nothing had been",
        ("API server: https://127.0.0.1:",),
        "answered writes, the variant and its one draft (test_kill.py does this 50 times, under load)",
    ),
    Fault(
        "kill -9 of the API server's process",
        scenarios.api_server_dies,
        "stderr of pvbus up, exit code 1",
        ("the API server's process was killed by signal 9", "Start again"),
        "answered writes",
    ),
)


SHORT = ("kill -9 of pvbus up", "CEL with a sixth variable", "a package whose Kptfile is broken")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One running `pvbus up` for all rows: each has a namespace of its own."""
    made = Installation(tmp_path_factory.mktemp("faults") / "data", settings=SETTINGS)
    made.start()
    made.wait_ready()
    yield made
    made.kill()


@pytest.fixture
async def world(
    installation: Installation, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[NamespaceWorld]:
    if not installation.is_running:
        installation.start()
        await asyncio.to_thread(installation.wait_ready)
    cluster = await HttpCluster.connect(installation.kubeconfig)
    name = "f-" + re.sub("[^a-z0-9]+", "-", str(request.node.callspec.id).lower()).strip("-")[:50]
    resource = await resource_of(cluster, NAMESPACE)
    await cluster.create(resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield NamespaceWorld(installation, cluster, name.strip("-"), tmp_path)
    await cluster.close()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=() if fault.name in SHORT else pytest.mark.long)
        for fault in FAULTS
    ],
)
async def test_a_fault_is_told_clearly_and_loses_nothing(fault: Fault, world: NamespaceWorld) -> None:
    """Each row: its words are at its place, in their order, and nothing that must stay is gone."""
    reported = await fault.scenario(world)
    expected = ".*".join(re.escape(piece) for piece in fault.reported)
    assert re.search(expected, reported.text, re.DOTALL), (
        f"{fault.where} should say {fault.reported}:\n{reported.text}"
    )
    assert reported.lost == (), f"kept must be: {fault.retained}\n{reported.text}"
