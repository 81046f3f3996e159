"""A small fleet under a client that never rests: what it does, what it was answered, what must come of it.

The client is the only writer of what it writes, so it knows what must be there: an answered write must be
visible from then on, one without an answer may or may not be. `must_be` is the whole expected world, by
the naive oracle over what the API server holds.
"""

import asyncio
import json
import random
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.manifests import Manifest
from pvbus.cli.apply import apply
from pvbus.core.api.packages import PackageRevision, Repository
from pvbus.core.api.variants import CONFIG_GROUP, PackageVariant, PackageVariantSet
from pvbus.core.errors import AlreadyExistsError, ConflictError, TransientError
from pvbus.core.kernel.keys import EDITED_BY, KEPT_LABEL
from pvbus.examples import fleet
from pvbus.ports.cluster import Kind, Object
from tests.kit.cluster import KindClient, resource_of
from tests.kit.oracle import Expected, Thing, expected_variants

NAMESPACE = "default"
CLUSTER = Kind("fleet.example.dev", "Cluster")
SET = Kind(CONFIG_GROUP, "PackageVariantSet")
VARIANT = Kind(CONFIG_GROUP, "PackageVariant")
REPOSITORY = Kind(CONFIG_GROUP, "Repository")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
CLUSTERS_PER_REGION = 20
PAUSE_SECONDS_MAX = 0.03
DRAFT = "packagevariant-1"
Change = Callable[[], Awaitable[None]]


class Spot(NamedTuple):
    kind: Kind
    name: str


def content_of(obj: Object | None) -> str | None:
    """The part of an object that belongs to the client."""
    if obj is None or obj["metadata"].get("deletionTimestamp"):
        return None
    return json.dumps([obj["metadata"].get("labels") or {}, obj["spec"]], sort_keys=True)


class Ledger:
    """What may be found at each spot: one content after an answer, several without one."""

    def __init__(self) -> None:
        self._possible: dict[Spot, set[str | None]] = {}
        self.answered = 0
        self.unanswered = 0

    def will(self, spot: Spot, content: str | None) -> None:
        self._possible.setdefault(spot, {None}).add(content)
        self.unanswered += 1

    def did(self, spot: Spot, content: str | None) -> None:
        self._possible[spot] = {content}
        self.answered += 1
        self.unanswered -= 1

    def compare(self, found: Mapping[Spot, Object]) -> list[str]:
        """Return what was lost or came back; from then on what was found is what must be there."""
        problems = []
        for spot, possible in self._possible.items():
            content = content_of(found.get(spot))
            if content not in possible:
                problems.append(f"{spot} is {content}, answered was {possible}")
            self._possible[spot] = {content}
        return problems


class Fleet:
    """The client and its view of the world."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        clusters_per_region: int = CLUSTERS_PER_REGION,
        pause_seconds_max: float = PAUSE_SECONDS_MAX,
        has_drafts: bool = True,
    ) -> None:
        """has_drafts: the API server has a package store; else no variant becomes ready."""
        self.folder = folder
        self._has_drafts = has_drafts
        self._per_region = clusters_per_region
        count = clusters_per_region * len(fleet.REGIONS)
        self._least, self._most = count - count // 4, count + count // 8
        self._pause_seconds_max = pause_seconds_max
        self.ledger = Ledger()
        self.refused: list[str] = []
        self._random = random.Random(seed)
        self._names = 0
        self._cluster: HttpCluster | None = None
        self._gone_uids: set[str] = set()
        self._turn = asyncio.Lock()

    # ------------------------------------------------------------ life

    async def connect(self, kubeconfig: Path) -> None:
        await self.close()
        self._cluster = await HttpCluster.connect(kubeconfig)

    async def close(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()

    @property
    def cluster(self) -> HttpCluster:
        assert self._cluster is not None
        return self._cluster

    async def settle_in(self) -> None:
        """Make repositories, clusters and sets."""
        chosen = [m for m in fleet.make(self.folder) if self._is_chosen(m.object)]
        await apply(self.cluster, chosen)
        await apply(
            self.cluster, [Manifest(self.folder, 1, obj) for obj in (listed_set(1), repository_set())]
        )
        for spot, obj in (await self.mine()).items():
            self.ledger.will(spot, content_of(obj))
            self.ledger.did(spot, content_of(obj))

    def _is_chosen(self, obj: Object) -> bool:
        return obj["kind"] != "Cluster" or int(obj["metadata"]["name"].rpartition("-")[2]) <= self._per_region

    async def items(self, kind: Kind) -> list[Object]:
        return await KindClient(self.cluster, NAMESPACE).items(kind)

    async def mine(self) -> dict[Spot, Object]:
        """Everything the client is the writer of."""
        found = {}
        for kind in (CLUSTER, SET, VARIANT, REPOSITORY):
            for obj in await self.items(kind):
                if kind != VARIANT or obj["metadata"]["name"].startswith("mine-"):
                    found[Spot(kind, obj["metadata"]["name"])] = obj
        return found

    # ------------------------------------------------------------ load

    async def work(self, stop: asyncio.Event) -> None:
        """Change something, again and again; whoever does not answer is asked again later."""
        while not stop.is_set():
            try:
                async with self._turn:
                    await self._change()
            except TransientError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(self._random.uniform(0.0, self._pause_seconds_max))

    async def _change(self) -> None:
        changes = self._changes()
        (change,) = self._random.choices(list(changes), list(changes.values()))
        await change()

    def _changes(self) -> dict[Change, int]:
        """Return what the client does, with its weight."""
        return {
            self._relabel: 30,
            self._resize: 14,
            self._come_or_go: 24,
            self._delete_variant: 12,
            self._own_variant: 8,
            self._edit_set: 6,
            self._set_comes_or_goes: 4,
            self._relabel_repository: 4,
        }

    async def _pick(self, kind: Kind) -> Object:
        return self._random.choice(
            sorted(await self.items(kind), key=lambda obj: str(obj["metadata"]["name"]))
        )

    async def _relabel(self) -> None:
        """A cluster is selected or not, and carries a label that its package shows."""
        obj = await self._pick(CLUSTER)
        labels = {
            **obj["metadata"]["labels"],
            "stage": self._random.choice(("production", "production", "staging")),
            "tier": self._random.choice(("gold", "silver")),
        }
        await self._patch(CLUSTER, obj, {"metadata": {"labels": labels}})

    async def _resize(self) -> None:
        """What is injected into a package changes."""
        obj = await self._pick(CLUSTER)
        await self._patch(CLUSTER, obj, {"spec": {**obj["spec"], "replicas": self._random.randint(1, 9)}})

    async def _come_or_go(self) -> None:
        present = await self.items(CLUSTER)
        if len(present) > self._least and (len(present) > self._most or self._random.random() < 0.5):
            await self._delete(CLUSTER, self._random.choice(present))
            return
        self._names += 1
        region = self._random.choice(fleet.REGIONS)
        labels = {"region": region, "stage": "production", "tier": "new"}
        spec = {"nodes": 3, "replicas": 1, "serviceCidr": f"10.9.{self._names % 256}.0/24"}
        name = f"{region}-new-{self._names}"
        await self._create(CLUSTER, {"metadata": {"name": name, "labels": labels}, "spec": spec})

    async def _delete_variant(self) -> None:
        """What a set wants comes back."""
        owned = [obj for obj in await self.items(VARIANT) if obj["metadata"].get("ownerReferences")]
        if owned:
            obj = self._random.choice(owned)
            resource = await resource_of(self.cluster, VARIANT)
            await self.cluster.delete(resource, NAMESPACE, obj["metadata"]["name"])
            self._gone_uids.add(obj["metadata"]["uid"])

    async def _own_variant(self) -> None:
        """A PackageVariant that no set makes."""
        present = [obj for obj in await self.items(VARIANT) if obj["metadata"]["name"].startswith("mine-")]
        living = [obj for obj in present if not obj["metadata"].get("deletionTimestamp")]
        if len(living) > 4:
            await self._delete(VARIANT, self._random.choice(living))
            return
        self._names += 1
        spec = {
            "upstream": {"repo": "blueprints", "package": "web", "revision": 1},
            "downstream": {"repo": "edge-asia", "package": f"mine-{self._names}"},
            "deletionPolicy": "delete",
            "packageContext": {"data": {"tier": "mine"}},
        }
        await self._create(VARIANT, {"metadata": {"name": f"mine-{self._names}"}, "spec": spec})

    async def _edit_set(self) -> None:
        """Every package of the set changes."""
        for obj in await self.items(SET):
            if obj["metadata"]["name"] == "web":
                spec = json.loads(json.dumps(obj["spec"]))
                exprs = spec["targets"][0]["template"]["packageContext"]["dataExprs"]
                note = {"key": "note", "value": f"edition-{self._random.randint(1, 1000)}"}
                spec["targets"][0]["template"]["packageContext"]["dataExprs"] = [*exprs[:1], note]
                await self._patch(SET, obj, {"spec": spec})

    async def _set_comes_or_goes(self) -> None:
        for obj in await self.items(SET):
            if obj["metadata"]["name"] == "listed":
                await self._delete(SET, obj)
                return
        await self._create(SET, listed_set(self._random.randint(1, 3)))

    async def _relabel_repository(self) -> None:
        obj = await self._pick(REPOSITORY)
        if obj["metadata"]["name"] != "blueprints":
            labels = {"canary": self._random.choice(("true", "false"))}
            await self._patch(REPOSITORY, obj, {"metadata": {"labels": labels}})

    # ------------------------------------------------------------ writes, noted before and after

    async def _create(self, kind: Kind, obj: Object) -> None:
        resource = await resource_of(self.cluster, kind)
        metadata = {**obj["metadata"], "namespace": NAMESPACE}
        body = {**obj, "apiVersion": resource.api_version, "kind": kind.kind, "metadata": metadata}
        spot = Spot(kind, metadata["name"])
        self.ledger.will(spot, content_of(body))
        try:
            stored = await self.cluster.create(resource, body)
        except AlreadyExistsError as exc:  # the one before it is still going
            self.ledger.did(spot, None)
            self.refused.append(str(exc))
            return
        self.ledger.did(spot, content_of(stored))

    async def _patch(self, kind: Kind, obj: Object, patch: dict[str, Any]) -> None:
        resource = await resource_of(self.cluster, kind)
        name = obj["metadata"]["name"]
        labels = patch.get("metadata", {}).get("labels") or obj["metadata"].get("labels")
        wanted = {"metadata": {"labels": labels}, "spec": patch.get("spec") or obj["spec"]}
        spot = Spot(kind, name)
        self.ledger.will(spot, content_of(wanted))
        try:
            stored = await self.cluster.patch(resource, NAMESPACE, name, patch)
        except ConflictError as exc:
            self.ledger.did(spot, content_of(obj))
            self.refused.append(str(exc))
            return
        self.ledger.did(spot, content_of(stored))

    async def _delete(self, kind: Kind, obj: Object) -> None:
        resource = await resource_of(self.cluster, kind)
        spot = Spot(kind, obj["metadata"]["name"])
        self.ledger.will(spot, None)
        await self.cluster.delete(resource, NAMESPACE, spot.name)
        self.ledger.did(spot, None)

    # ------------------------------------------------------------ judging

    async def lost_writes(self) -> list[str]:
        """Compare what the API server holds with what it answered, between two changes."""
        async with self._turn:
            problems = self.ledger.compare(await self.mine())
            for obj in await self.items(VARIANT):
                meta = obj["metadata"]
                if meta["uid"] in self._gone_uids and not meta.get("deletionTimestamp"):
                    problems.append(f"{meta['name']} was deleted, and lives")
        return problems

    async def differences(self) -> list[str]:
        """Compare the whole world with what it must be; [] when there is nothing left to do."""
        variants = await self.items(VARIANT)
        expected = await self._expected(variants)
        living = {f"{NAMESPACE}/{obj['metadata']['name']}": obj for obj in variants}
        problems = [f"{key} must not be there" for key in living.keys() - expected.keys()]
        problems += [f"{key} is missing" for key in expected.keys() - living.keys()]
        for key in living.keys() & expected.keys():
            problems += _variant_problems(key, living[key], expected[key], has_drafts=self._has_drafts)
        if not problems and self._has_drafts:
            problems = await self._draft_problems(living)
        return sorted(problems)

    async def _expected(self, variants: Iterable[Object]) -> dict[str, Expected]:
        things = [
            Thing(
                str(CLUSTER),
                NAMESPACE,
                obj["metadata"]["name"],
                obj["metadata"].get("labels") or {},
                obj["metadata"].get("annotations") or {},
            )
            for obj in await self.items(CLUSTER)
        ]
        of_nobody = [obj for obj in variants if not obj["metadata"].get("ownerReferences")]
        return expected_variants(
            [msgspec.convert(obj, PackageVariantSet) for obj in await self.items(SET)],
            things,
            [msgspec.convert(obj, Repository) for obj in await self.items(REPOSITORY)],
            [msgspec.convert(obj, PackageRevision) for obj in await self.items(REVISION)],
            existing_children=[msgspec.convert(obj, PackageVariant) for obj in of_nobody],
        )

    async def _draft_problems(self, living: Mapping[str, Object]) -> list[str]:
        """Each variant has one draft in the API and one branch in git, with the content asked for. The only
        other drafts are those that people edited before their variants were deleted."""
        owners = {obj["metadata"]["uid"]: obj for obj in living.values()}
        package_keys = {package_key_of(obj): obj for obj in living.values()}
        problems = []
        seen, retained = [], set()
        for revision in await self.items(REVISION):
            spec = revision["spec"]
            if spec["repository"] == "blueprints":
                continue
            name, package_key = revision["metadata"]["name"], (spec["repository"], spec["packageName"])
            if _is_kept(revision) and package_key not in package_keys:
                retained.add(package_key)
                continue
            seen.append(package_key)
            uids = [owner["uid"] for owner in revision["metadata"].get("ownerReferences") or ()]
            if len(uids) != 1 or uids[0] not in owners:
                problems.append(f"draft {name} belongs to {uids}")
            elif package_key_of(owners[uids[0]]) != package_key:
                problems.append(f"draft {name} belongs to a variant of {package_key_of(owners[uids[0]])}")
            if (spec["workspaceName"], spec["lifecycle"]) != (DRAFT, "Draft"):
                problems.append(f"draft {name} is {spec['workspaceName']}, {spec['lifecycle']}")
        if sorted(seen) != sorted(package_keys):
            problems.append(f"drafts too many or too few: {sorted(set(seen) ^ set(package_keys))}")
        clusters = {obj["metadata"]["name"]: obj for obj in await self.items(CLUSTER)}
        for region in fleet.REGIONS:
            remote = f"edge-{region}"
            drafts = {*package_keys, *retained}
            wanted = {f"drafts/{package}/{DRAFT}" for repo, package in drafts if repo == remote}
            present = set(
                _git(self.folder / f"{remote}.git", "for-each-ref", "--format=%(refname:lstrip=2)").split()
            )
            if present != wanted | {"main"}:
                problems.append(f"{remote}: branches {sorted(present ^ (wanted | {'main'}))}")
                continue
            problems += [
                problem
                for (repo, package), obj in package_keys.items()
                if repo == remote
                for problem in self._content_problems(repo, package, obj, clusters)
            ]
        return problems

    def _content_problems(
        self, repo: str, package: str, variant: Object, clusters: Mapping[str, Object]
    ) -> list[str]:
        """The draft's files say what the variant and the injected cluster say."""
        tree = f"drafts/{package}/{DRAFT}:{package}"
        remote = self.folder / f"{repo}.git"
        context = yaml.safe_load(_git(remote, "show", f"{tree}/package-context.yaml"))["data"]
        problems = []
        for key, value in ((variant["spec"].get("packageContext") or {}).get("data") or {}).items():
            if context.get(key) != value:
                problems.append(
                    f"{repo}/{package}: the package context has {key}={context.get(key)}, not {value}"
                )
        injectors = variant["spec"].get("injectors") or ()
        if injectors and injectors[0]["name"] in clusters:
            deployment = yaml.safe_load(_git(remote, "show", f"{tree}/deployment.yaml"))
            replicas = clusters[injectors[0]["name"]]["spec"]["replicas"]
            if deployment["spec"]["replicas"] != replicas:
                problems.append(
                    f"{repo}/{package}: {deployment['spec']['replicas']} replicas, not {replicas}"
                )
        return problems

    async def versions(self) -> dict[Spot, str]:
        """Return the resourceVersion of everything the services may write."""
        return {
            Spot(kind, obj["metadata"]["name"]): obj["metadata"]["resourceVersion"]
            for kind in (SET, VARIANT, REVISION)
            for obj in await self.items(kind)
        }


def _is_kept(revision: Object) -> bool:
    """Return whether a draft stays without a variant, for the edits of a person."""
    metadata = revision["metadata"]
    is_marked = (metadata.get("labels") or {}).get(KEPT_LABEL) == "true"
    return is_marked and EDITED_BY in metadata["annotations"] and not metadata.get("ownerReferences")


def package_key_of(variant: Object) -> tuple[str, str]:
    downstream = variant["spec"]["downstream"]
    return downstream["repo"], downstream["package"]


def _variant_problems(key: str, obj: Object, expected: Expected, *, has_drafts: bool) -> list[str]:
    variant = msgspec.convert(obj, PackageVariant)
    meta = variant.metadata
    if meta.deletion_timestamp:
        return [f"{key} is being deleted"]
    if variant.spec != expected.spec:
        return [f"{key} is {variant.spec}, must be {expected.spec}"]
    owner = meta.owner_references[0].uid if meta.owner_references else ""
    if owner != expected.owner:
        return [f"{key} belongs to {owner!r}, must belong to {expected.owner!r}"]
    ready = next((c for c in variant.status.conditions if c.type == "Ready"), None)
    if not has_drafts and ready is not None and ready.observed_generation == meta.generation:
        return []
    if ready is None or ready.status != "True" or ready.observed_generation != meta.generation:
        return [f"{key} is not ready at generation {meta.generation}: {ready}"]
    return []


def _git(remote: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=remote, capture_output=True, text=True, check=True)
    return done.stdout


def listed_set(count: int) -> Object:
    """A set over places that it names itself."""
    packages = [f"listed-{number}" for number in range(count)]
    target = {
        "repositories": [{"name": f"edge-{region}", "packageNames": packages} for region in fleet.REGIONS]
    }
    return set_object("listed", target)


def repository_set() -> Object:
    """A set over the repositories with a label."""
    return set_object("canary", {"repositorySelector": {"matchLabels": {"canary": "true"}}})


def set_object(name: str, *targets: Object, **upstream: Any) -> Object:
    return {
        "apiVersion": f"{CONFIG_GROUP}/v1alpha2",
        "kind": "PackageVariantSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "upstream": {"repo": "blueprints", "package": "web", "revision": 1, **upstream},
            "targets": list(targets),
        },
    }
