"""The station of the rollout's story with a train: two packages that go as one on each site."""

from collections.abc import Iterable

from pvbus.cli.demos.rollout import Scene, is_branch, progressing, status_of_policy
from pvbus.cli.demos.story import Fleet, Step
from pvbus.cli.live import REVISION
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import AUTO_LIFECYCLE
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Object

SITES = ("edge-asia", "edge-europe")
MEMBERS = ("schema", "shop")
"""In the order in which they are approved."""
POLICY = """\
apiVersion: promotion.pvbus.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: shop, namespace: default}
spec:
  revisions: {selector: {matchLabels: {app: shop}}}
  approval: Always
  settle: 1s
  train:
    mode: InOrder
    members:
    - {set: schema, upstream: blueprints/schema@v1}
    - {set: shop, upstream: blueprints/shop@v1}
  waves:
  - {count: 1}
  - {percent: 100}
"""


def train(scene: Scene) -> Iterable[Step]:
    """Return the steps: one package without the other goes nowhere; both go in their order, site by site."""
    logs = "\n".join(
        f"git -C {scene.example}/{site}.git log --reverse --format='{site}: %s' main -- {' '.join(MEMBERS)}"
        for site in SITES
    )
    return (
        Step(
            "Two packages were verified together, on two sites: a schema, and a shop that needs it. "
            "The schema comes alone.",
            f"{_published(scene)}\nkubectl apply -f - <<'END'\n{POLICY}---\n{_set('schema')}END",
            _await_incomplete,
        ),
        Step(
            "The shop comes, and the train goes: wave by wave, the schema first on each site.",
            f"kubectl apply -f - <<'END'\n{_set('shop')}END",
            _await_arrived,
        ),
        Step(
            "What git has of it.",
            f"pvbus rollout history default/shop{scene.options}\n{logs}",
            _in_order,
        ),
    )


def _published(scene: Scene) -> str:
    """Return the commands that publish both packages."""
    packages = "\n".join(
        f"mkdir {scene.work}/{name}\n"
        f"cat > {scene.work}/{name}/Kptfile <<'END'\n"
        f"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata: {{name: {name}}}\nEND\n"
        f"kubectl create configmap {name} --from-literal=version=1 --dry-run=client -o yaml "
        f"> {scene.work}/{name}/{name}.yaml"
        for name in MEMBERS
    )
    tags = " ".join(f"{name}/v1" for name in MEMBERS)
    tagged = "\n".join(f"git -C {scene.work} tag {name}/v1" for name in MEMBERS)
    waits = [
        f"kubectl wait packagerevision/blueprints.{name}.v1 --for=create --timeout=60s" for name in MEMBERS
    ]
    return (
        f"{packages}\ngit -C {scene.work} add --all\n{scene.commit} --message 'Schema and shop'\n{tagged}\n"
        f"git -C {scene.work} push --quiet origin HEAD:main {tags}\n" + "\n".join(waits)
    )


def _set(name: str) -> str:
    """Return a set with one variant of a package on each site, whose drafts are proposed by themselves."""
    targets = "".join(f"    - {{name: {site}, packageNames: [{name}]}}\n" for site in SITES)
    return (
        "apiVersion: config.porch.kpt.dev/v1alpha2\nkind: PackageVariantSet\n"
        f"metadata: {{name: {name}, namespace: default}}\nspec:\n"
        f"  upstream: {{repo: blueprints, package: {name}, revision: 1}}\n"
        f"  targets:\n  - repositories:\n{targets}"
        f"    template:\n      labels: {{app: shop}}\n"
        f'      annotations: {{{AUTO_LIFECYCLE}: "true"}}\n'
    )


async def _members(fleet: Fleet) -> list[Object]:
    return [obj for obj in await fleet.all(REVISION) if _is_member(obj)]


def _is_member(obj: Object) -> bool:
    spec = obj["spec"]
    return spec["repository"] in SITES and spec["packageName"] in MEMBERS and not is_branch(obj)


async def _await_incomplete(fleet: Fleet) -> str:
    async def is_incomplete() -> bool:
        waits = progressing(await status_of_policy(fleet, "shop"))["reason"] == "TrainIncomplete"
        states = [lifecycle_of(obj) for obj in await _members(fleet)]
        return waits and states == ["Proposed"] * len(SITES)

    seconds = await fleet.until(is_incomplete, "the train does not wait for its second package")
    message = progressing(await status_of_policy(fleet, "shop"))["message"]
    return f"after {seconds:.0f} s the schema is proposed on {len(SITES)} sites, and nothing goes: {message}"


async def _await_arrived(fleet: Fleet) -> str:
    async def has_arrived() -> bool:
        return (await status_of_policy(fleet, "shop")).get("phase") == "Completed"

    seconds = await fleet.until(has_arrived, "the train has not arrived")
    count = sum(lifecycle_of(obj) == "Published" for obj in await _members(fleet))
    if count != len(SITES) * len(MEMBERS):
        raise PermanentError(f"the rollout of the train is complete, and {count} packages are published")
    return f"{count} packages are published on {len(SITES)} sites after {seconds:.0f} s"


async def _in_order(fleet: Fleet) -> str:
    """Look when each package was published. Raises PermanentError if a shop came before its schema."""
    at = {
        (obj["spec"]["repository"], obj["spec"]["packageName"]): obj["status"]["publishTimestamp"]
        for obj in await _members(fleet)
    }
    wrong = [site for site in SITES if at[site, "shop"] < at[site, "schema"]]
    if wrong:
        raise PermanentError(f"the shop came before its schema on {', '.join(wrong)}")
    return f"on each of {len(SITES)} sites the schema was published before the shop"
