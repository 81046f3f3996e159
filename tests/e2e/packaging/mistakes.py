"""What people of Crossplane's family ask for that cannot be, and what they may rely on, on any API server.

Each step of the story says what it proves. Packages are folders of a git repository, and an image. The story
of Carvel's family is in `carvel`, and goes on from this one.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pvbus.examples.platform import PLATFORMS
from tests.e2e.cli.command import git, pvbus
from tests.e2e.packaging.platform import (
    FAMILIES,
    REVISIONS,
    Object,
    Platform,
    is_ready,
    message_of,
)
from tests.tools import registry
from tests.tools.images import Pusher, basic, pull_secret, xpkg_of

SETTINGS = {"PVBUS_PLATFORMS": PLATFORMS, "PVBUS_OBSERVE_SECONDS": "1"}
PKG = "pkg.crossplane.io/v1"
CRDS = "apiextensions.k8s.io/v1"
GROUP = "mistakes.example.dev"
"""Of the kinds that the packages define."""
SECRETS = "crossplane-system"
"""The namespace of pull secrets."""
ABSENT = {"crd": {"apiVersion": "absent.example.dev/v1", "kind": "Nix"}}
COLLECTED_SECONDS = 180.0
"""Kubernetes' garbage collector looks for new kinds every 30 s."""


class Mistakes(Platform):
    """Packages that these people ask for, in a repository of their own."""

    def __init__(
        self,
        folder: Path,
        kubectl: Path,
        images: registry.Running,
        kubeconfig: Path | None = None,
        bus: str = "",
    ) -> None:
        """images: a registry that wants a password. bus: the URL of another bus than that of the folder."""
        super().__init__(folder, kubectl, kubeconfig)
        self.images, self._bus = images, bus
        self.repository = folder / "mistakes.git"
        self._clone = folder / "mistakes"
        self.kubeconfig = kubeconfig or self.data / "kubeconfig"
        git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.repository))
        git(folder, "clone", "--quiet", str(self.repository), str(self._clone))

    def publish(
        self,
        folder: str,
        version: str,
        *depends: Object,
        kind: str = "Configuration",
        objects: tuple[Object, ...] = (),
        **spec: Any,
    ) -> None:
        metadata = {"name": folder, "annotations": {"meta.crossplane.io/maintainer": "Joe"}}
        head = {"apiVersion": "meta.pkg.crossplane.io/v1", "kind": kind, "metadata": metadata}
        (self._clone / folder).mkdir(exist_ok=True)
        meta = {**head, "spec": {"dependsOn": list(depends), **spec}}
        (self._clone / folder / "crossplane.yaml").write_text(yaml.safe_dump(meta))
        (self._clone / folder / "objects.yaml").write_text(yaml.safe_dump_all([*objects]))
        person = ("-c", "user.name=A Person", "-c", "user.email=person@example.com")
        git(self._clone, "add", "--all")
        git(self._clone, *person, "commit", "--quiet", "--allow-empty", "--message", f"{folder} {version}")
        git(self._clone, "tag", "--force", f"{folder}/{version}")
        git(self._clone, "push", "--quiet", "--force", "origin", "HEAD", f"{folder}/{version}")

    def needs(self, folder: str, version: str, kind: str = "provider") -> Object:
        return {kind: self.image(folder), "version": version}

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def install(self, name: str, package: str, kind: str = "Configuration", **spec: Any) -> None:
        annotations = spec.pop("annotations", {})
        metadata = {"name": name, "annotations": annotations}
        given = {"package": package, **spec}
        self.apply({"apiVersion": PKG, "kind": kind, "metadata": metadata, "spec": given})

    def says(self, kind: str, name: str, type_: str, *words: str) -> None:
        """Wait until a condition has these words, and an Event of the object the last of them."""
        self.until(lambda: all(word in message_of(self.get(kind, name), type_) for word in words))
        self.until(lambda: words[-1] in self.events(name))

    def events(self, name: str) -> str:
        chosen = f"--field-selector=involvedObject.name={name}"
        found = json.loads(self.kubectl("get", "events", "--all-namespaces", chosen, "-o", "json"))
        return "\n".join(each["message"] for each in found["items"])

    def sent(self) -> dict[str, str]:
        """Return what consumers of the bus have been sent: `KIND NAME TYPE=STATUS` -> all its messages."""
        options = ("--bus", self._bus) if self._bus else ()
        shown = pvbus("conditions", "--since", "1h", "-o", "json", *options, cwd=self.folder)
        assert shown.code == 0, shown.err
        messages: dict[str, str] = {}
        for event in map(json.loads, shown.out.splitlines()):
            said = event["condition"]
            subject = f"{event['kind']} {event['name']} {said['type']}={said['status']}"
            messages[subject] = f"{messages.get(subject, '')}{said.get('message', '')}\n"
        return messages

    def has(self, version: str, folder: str) -> Callable[[], bool]:
        return lambda: self.versions().get(folder) == version


def definition(plural: str, *fields: str) -> Object:
    kind = plural[:-1].capitalize()
    properties = {field: {"type": "string"} for field in fields}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": plural[:-1]}
    spec = {"group": GROUP, "names": names, "scope": "Cluster", "versions": [version]}
    metadata = {"name": f"{plural}.{GROUP}"}
    return {"apiVersion": CRDS, "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}


def tell(world: Mistakes) -> None:
    """Tell the whole story."""
    a_bystander_is_not_taken_lower(world)
    a_wait_after_a_change_is_for_that_change(world)
    a_rollback_is_told_and_kept(world)
    what_cannot_be_is_refused_in_words(world)
    what_is_asked_for_is_what_is_installed(world)
    a_moved_tag_is_a_revision_and_the_oldest_goes(world)
    with_manual_the_active_one_stays_until_a_person_activates(world)
    another_pull_secret_has_the_content_pulled_again(world)
    of_two_with_the_same_objects_one_wins_whole(world)
    options_pass_to_what_is_created(world)
    consumers_are_sent_what_has_happened(world)


def a_bystander_is_not_taken_lower(world: Mistakes) -> None:
    """An upgrade that needs it is refused, and granted once the bystander allows it (F1, X12, X13)."""
    world.publish("b", "v1.0.0", kind="Provider", objects=(definition("bees", "size"),))
    world.publish("b", "v2.0.0", kind="Provider", objects=(definition("bees", "size", "colour"),))
    for version, wanted in (("v1.0.0", ">=v1.0.0"), ("v2.0.0", "<v2.0.0"), ("v3.0.0", ">=v2.0.0")):
        world.publish("a", version, world.needs("b", wanted))
    world.install("b", world.image("b"), "Provider", annotations={"pvbus.dev/range": ">=v1.0.0"})
    world.until(world.has("v2.0.0", "b"))
    world.install("a", world.image("a", "v1.0.0"), revisionHistoryLimit=0)
    world.until(world.has("v1.0.0", "a"))
    world.patch("configuration", "a", {"package": world.image("a", "v2.0.0")})
    world.says("configuration", "a", "Healthy", "v2.0.0, pinned by you", "downgrades are not allowed")
    assert world.versions()["b"] == "v2.0.0"
    assert "colour" in json.dumps(world.get("customresourcedefinition", "bees.mistakes.example.dev"))
    world.kubectl("annotate", "provider", "b", "pvbus.dev/downgrades=true")
    world.until(lambda: (world.has("v2.0.0", "a")(), world.has("v1.0.0", "b")()) == (True, True))
    world.kubectl("annotate", "provider", "b", "pvbus.dev/downgrades-")


def a_wait_after_a_change_is_for_that_change(world: Mistakes) -> None:
    """Conditions have the generation that they are of (F5, X14)."""
    world.patch("configuration", "a", {"package": world.image("a", "v3.0.0")})
    world.kubectl("wait", "configuration/a", "--for=condition=Healthy", "--timeout=80s")
    assert {name: world.versions().get(name) for name in ("a", "b")} == {"a": "v3.0.0", "b": "v2.0.0"}
    found = world.get("configuration", "a")
    seen = {each["observedGeneration"] for each in found["status"]["conditions"]}
    assert seen == {found["metadata"]["generation"]}
    reasons = {each["type"]: each["reason"] for each in found["status"]["conditions"]}
    assert reasons == {"Installed": "ActivePackageRevision", "Healthy": "HealthyPackageRevision"}


def a_rollback_is_told_and_kept(world: Mistakes) -> None:
    """Under Automatic, too; what the spec asks for is current all the while (F7, X4, X19, X20)."""
    first, last = (world.revision("a", number)["metadata"] for number in (1, 3))
    assert last["annotations"]["meta.crossplane.io/maintainer"] == "Joe"
    spec = {"desiredState": "Active"}
    world.patch("configurationrevision", first["name"], spec)
    world.until(lambda: "was activated by hand and stays" in message_of(a_of(world), "Installed"))
    found = a_of(world)
    assert found["status"]["currentRevision"] == last["name"]
    assert found["status"]["currentIdentifier"] == found["spec"]["package"]
    assert max(world.revisions("a")) == 4
    world.patch("configurationrevision", last["name"], spec)
    world.until(lambda: not message_of(a_of(world), "Installed"))


def a_of(world: Mistakes) -> Object:
    return world.get("configuration", "a")


def what_cannot_be_is_refused_in_words(world: Mistakes) -> None:
    """In a condition of the present generation and an Event, whatever is wrong, and others stay (F4, F8, F9,
    X10, X11, X12)."""
    world.publish("kind", "v1.0.0")
    world.publish("api", "v1.0.0", ABSENT)
    world.publish("new", "v1.0.0", crossplane={"version": ">=v99.0.0"})
    image = world.image("b", "v1.0.0")
    world.install("bad-range", world.image("b"), "Provider", annotations={"pvbus.dev/range": ">>1"})
    removal = {"pvbus.dev/dependency-removal": "remove"}
    world.install("bad-removal", image, "Provider", annotations=removal)
    world.install("bad-name", "not a ref!!")
    world.install("bad-kind", world.image("kind", "v1.0.0"), "Function")
    world.install("bad-api", world.image("api", "v1.0.0"))
    world.install("bad-platform", world.image("new", "v1.0.0"))
    world.says("provider", "bad-range", "Healthy", "pvbus.dev/range", ">>1")
    world.says("provider", "bad-removal", "Healthy", "must be one of orphan, delete, keep-if-used")
    world.says("configuration", "bad-name", "Healthy", "spec.package", "which no image's name has")
    world.says("function", "bad-kind", "Healthy", "install it with kind Configuration")
    api = "needs API absent.example.dev/v1 Nix, but no known package provides it"
    world.says("configuration", "bad-api", "Healthy", f"{world.image('api')} v1.0.0, pinned by you, {api}")
    world.says("configuration", "bad-platform", "Healthy", "needs crossplane >=v99.0.0, and ")
    assert is_ready(world.get("configuration", "a"))
    assert is_ready(world.get("provider", "b"))
    for kind, name in (("provider", "bad-range"), ("configuration", "bad-api")):
        conditions = world.get(kind, name)["status"]["conditions"]
        assert {each["observedGeneration"] for each in conditions} == {1}
    bad = ("bad-name", "bad-api", "bad-platform")
    world.kubectl("delete", "configuration", *bad, "--timeout=60s")
    world.kubectl("delete", "provider", "bad-range", "bad-removal", "--timeout=60s")
    world.kubectl("delete", "function", "bad-kind", "--timeout=60s")


def what_is_asked_for_is_what_is_installed(world: Mistakes) -> None:
    """By `?ref=` and by `:tag`; without its dependencies if the switch says so; in a ring as one (X13, X15,
    X17)."""
    for version in ("v1.0.0", "v2.0.0"):
        for folder in ("c", "d"):
            world.publish(folder, version, objects=())
    world.publish("alone", "v1.0.0", ABSENT)
    world.publish("left", "v1.0.0", world.needs("right", ">=v1.0.0", "configuration"))
    world.publish("right", "v1.0.0", world.needs("left", ">=v1.0.0", "configuration"))
    world.install("c", f"{world.image('c')}?ref=c/v1.0.0")
    world.install("d", world.image("d", "v1.0.0"))
    world.install("alone", world.image("alone", "v1.0.0"), skipDependencyResolution=True)
    world.install("newest", world.image("new", "v1.0.0"), ignoreCrossplaneConstraints=True)
    world.install("left", world.image("left", "v1.0.0"))
    for folder in ("d", "alone", "new", "left", "right"):
        world.until(world.has("v1.0.0", folder))
    named = f"{world.image('c')}:v1.0.0"
    world.until(lambda: world.get("configuration", "c").get("status", {}).get("currentIdentifier") == named)
    assert world.revisions("c").keys() == {1}
    for name, switch in (("alone", "skipDependencyResolution"), ("newest", "ignoreCrossplaneConstraints")):
        assert f"{switch} is on" in message_of(world.get("configuration", name), "Installed")
    world.says("configuration", "left", "Installed", "they are installed and removed as one")


def a_moved_tag_is_a_revision_and_the_oldest_goes(world: Mistakes) -> None:
    """With the limit of one former revision that is the default; the same content makes none (X2, X5)."""
    for number in (2, 3):
        world.publish("d", "v1.0.0", objects=(definition("dees", f"field{number}"),))
        world.until(partial(lambda wanted: max(world.revisions("d")) == wanted, number))
    world.until(lambda: world.revisions("d") == {2: "Inactive", 3: "Active"})


def with_manual_the_active_one_stays_until_a_person_activates(world: Mistakes) -> None:
    """What a person activates gets the highest number; no limit keeps all, and another one takes effect (X4,
    X5)."""
    options = {"revisionActivationPolicy": "Manual", "revisionHistoryLimit": 0}
    world.patch("configuration", "d", {**options, "package": world.image("d", "v2.0.0")})
    world.until(lambda: 4 in world.revisions("d"))
    assert world.revisions("d") == {2: "Inactive", 3: "Active", 4: "Inactive"}
    second, fourth = (world.revision("d", number)["metadata"]["name"] for number in (2, 4))
    assert f"{fourth} is inactive" in message_of(world.get("configuration", "d"), "Installed")
    active = {"desiredState": "Active"}
    world.patch("configurationrevision", fourth, active)
    world.until(lambda: world.revisions("d") == {2: "Inactive", 3: "Inactive", 5: "Active"})
    world.patch("configurationrevision", second, active)
    world.until(lambda: world.revisions("d") == {3: "Inactive", 5: "Inactive", 6: "Active"})
    assert world.revision("d", 6)["metadata"]["name"] == second
    world.patch("configuration", "d", {"revisionHistoryLimit": 1})
    world.until(lambda: world.revisions("d") == {5: "Inactive", 6: "Active"})


def another_pull_secret_has_the_content_pulled_again(world: Mistakes) -> None:
    """What is refused is in words, and what is pulled then is revision 1 (X6)."""
    head = {
        "apiVersion": "meta.pkg.crossplane.io/v1",
        "kind": "Configuration",
        "metadata": {"name": "pulled"},
    }
    content = yaml.safe_dump_all([head, definition("pulls", "a")]).encode()
    Pusher(world.images.url, basic(registry.USER, registry.PASSWORD)).push(
        "pulled", "v1.0.0", xpkg_of({"package.yaml": content})
    )
    for name, password in (("wrong", "mistyped"), ("right", registry.PASSWORD)):
        secret = pull_secret(world.images.address, registry.USER, password)
        made = {"apiVersion": "v1", "kind": "Secret", **secret, "metadata": {"name": name}}
        world.kubectl("apply", f"--namespace={SECRETS}", "-f", "-", stdin=yaml.safe_dump(made))
    image = f"{world.images.address}/pulled:v1.0.0"
    world.install("pulled", image, packagePullSecrets=[{"name": "wrong"}])
    world.says("configuration", "pulled", "Installed", f"refused as {registry.USER}", "check the pull secret")
    assert world.revisions("pulled") == {}
    world.patch("configuration", "pulled", {"packagePullSecrets": [{"name": "right"}]})
    world.until(world.has("v1.0.0", "pulled"))
    assert world.revisions("pulled") == {1: "Active"}
    world.kubectl("delete", "configuration", "pulled", "--timeout=60s")


def of_two_with_the_same_objects_one_wins_whole(world: Mistakes) -> None:
    """Applied in one request; the other one gets no revision, and names the owner (X7, X10, X11)."""
    ones, twos = definition("ones", "a"), definition("twos", "b")
    for folder, objects in (("pa", (ones, twos)), ("pb", (twos, ones))):
        world.publish(folder, "v1.0.0", objects=objects)
    head = {"apiVersion": PKG, "kind": "Configuration"}
    both = ({"metadata": {"name": x}, "spec": {"package": world.image(x, "v1.0.0")}} for x in ("pa", "pb"))
    world.apply(*({**head, **each} for each in both))
    world.until(lambda: len({"pa", "pb"} & world.versions().keys()) == 1)
    (winner,) = {"pa", "pb"} & world.versions().keys()
    (loser,) = {"pa", "pb"} - {winner}
    world.says(
        "configuration", loser, "Healthy", "s.mistakes.example.dev belongs to", f"Configuration {winner}"
    )
    assert (world.revisions(winner), world.revisions(loser)) == ({1: "Active"}, {})
    world.kubectl("delete", "configuration", winner, "--timeout=60s")
    world.until(world.has("v1.0.0", loser), seconds=COLLECTED_SECONDS)


def options_pass_to_what_is_created(world: Mistakes) -> None:
    """The runtime's, those of pulling and of history; what the user sets later follows (X12, X21)."""
    world.publish("small", "v1.0.0", kind="Provider")
    world.publish("large", "v1.0.0", world.needs("small", ">=v1.0.0"), kind="Provider")
    config = {"apiVersion": "pkg.crossplane.io/v1beta1", "kind": "DeploymentRuntimeConfig"}
    world.apply({**config, "metadata": {"name": "special"}, "spec": {}})
    options = {"packagePullPolicy": "Always", "revisionHistoryLimit": 3}
    named = {"runtimeConfigRef": {"name": "special"}}
    world.install("large", world.image("large", "v1.0.0"), "Provider", **options, **named)
    world.until(world.has("v1.0.0", "large"))
    small = world.installs()["small"]
    assert {name: small["spec"].get(name) for name in options} == options
    assert small["spec"]["runtimeConfigRef"]["name"] == "special"
    world.patch("provider", "large", {"packagePullPolicy": "IfNotPresent"})
    world.until(lambda: world.installs()["small"]["spec"].get("packagePullPolicy") == "IfNotPresent")


def consumers_are_sent_what_has_happened(world: Mistakes) -> None:
    """Refusals, a ring, installations and activations, also of what is gone meanwhile (X18)."""
    active, inactive = (world.revision("d", number)["metadata"]["name"] for number in (6, 5))
    wanted = {
        "Configuration bad-api Healthy=False": "no known package provides it",
        "Configuration pulled Installed=False": "check the pull secret",
        "Configuration left Installed=True": "they are installed and removed as one",
        "Configuration a Installed=True": "was activated by hand and stays",
        "Provider b Installed=True": "",
        f"ConfigurationRevision {inactive} RevisionHealthy=True": "the revision is inactive",
        f"ConfigurationRevision {active} RevisionHealthy=True": "",
    }
    world.until(lambda: has_all(world.sent(), wanted))
    sent = world.sent()
    assert any("belongs to" in sent.get(f"Configuration {name} Healthy=False", "") for name in ("pa", "pb"))
    for name, versions in (("a", ("v1.0.0", "v2.0.0", "v3.0.0")), ("d", ("v1.0.0", "v2.0.0"))):
        assert all(f"{version} is installed" in world.events(name) for version in versions)


def has_all(sent: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(subject in sent and words in sent[subject] for subject, words in wanted.items())


def installed(platform: Platform) -> dict[str, Object]:
    """Return Crossplane's family and what it has defined, by kind and name."""
    kinds = ("customresourcedefinitions", "deploymentruntimeconfigs", *REVISIONS, *FAMILIES[:3])
    found = platform.items(*kinds)
    return {
        f"{obj['kind']}/{obj['metadata']['name']}": obj
        for obj in found
        if obj["kind"] != "CustomResourceDefinition" or obj["spec"]["group"] == GROUP
    }


def backup_of(platform: Platform, *, has_owners: bool) -> list[Object]:
    """Return what is installed as a backup has it: without statuses, installs last.

    has_owners: whether it has the owners of objects, with uids that are nobody's any more
    """
    given = ("name", "labels", "annotations", "finalizers", *(["ownerReferences"] if has_owners else []))
    return [
        {
            **{name: value for name, value in obj.items() if name != "status"},
            "metadata": {name: value for name, value in obj["metadata"].items() if name in given},
        }
        for obj in installed(platform).values()
    ]


def what_comes_from_a_backup_is_owned_again(platform: Platform, before: dict[str, Object]) -> None:
    """By the objects that have the owners' names, with other uids; all revisions are as they were (X9)."""
    wanted = owned(before)
    platform.until(lambda: owned(installed(platform)) == wanted)
    found = installed(platform)
    assert {key: facts(found[key]) for key in found} == {key: facts(before[key]) for key in before}
    assert not uids_of(found) & uids_of(before)


def owned(objects: dict[str, Object]) -> dict[str, Any]:
    """Return whether each install is ready, and who controls all else, if it has the uid that is named."""
    uids = {key: obj["metadata"]["uid"] for key, obj in objects.items()}
    return {
        key: is_ready(obj)
        if "package" in obj["spec"]
        else [
            each["name"]
            for each in obj["metadata"].get("ownerReferences", [])
            if each.get("controller") and uids.get(f"{each['kind']}/{each['name']}") == each["uid"]
        ]
        for key, obj in objects.items()
    }


def facts(obj: Object) -> tuple[Any, ...]:
    return obj["spec"].get("revision"), obj["spec"].get("desiredState"), obj["spec"].get("package")


def uids_of(objects: dict[str, Object]) -> set[str]:
    return {obj["metadata"]["uid"] for obj in objects.values()}
