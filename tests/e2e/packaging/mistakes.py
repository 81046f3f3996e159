"""What people ask for that cannot be, and what they may rely on, on any API server: a story of both families.

Each step says what it proves. Packages are folders of a git repository, and inline files.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pvbus.examples.platform import PLATFORMS
from tests.e2e.cli.command import git, pvbus
from tests.e2e.packaging.platform import NAMESPACE, Object, Platform, conditions_of, message_of

SETTINGS = {"PVBUS_PLATFORMS": PLATFORMS, "PVBUS_OBSERVE_SECONDS": "1"}
PKG, CARVEL, DATA = (
    "pkg.crossplane.io/v1",
    "packaging.carvel.dev/v1alpha1",
    "data.packaging.carvel.dev/v1alpha1",
)
RBAC = "rbac.authorization.k8s.io"
CRDS = "apiextensions.k8s.io/v1"
ABSENT = {"crd": {"apiVersion": "absent.example.dev/v1", "kind": "Nix"}}
HEALTHY = "ReconcileSucceeded"
COLLECTED_SECONDS = 180.0
"""Kubernetes' garbage collector looks for new kinds every 30 s."""


class Mistakes(Platform):
    """Packages that these people ask for, in a repository of their own."""

    def __init__(self, folder: Path, kubectl: Path, kubeconfig: Path | None = None) -> None:
        super().__init__(folder, kubectl, kubeconfig)
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

    def has(self, version: str, folder: str) -> Callable[[], bool]:
        return lambda: self.versions().get(folder) == version


def definition(plural: str, *fields: str) -> Object:
    kind = plural[:-1].capitalize()
    properties = {field: {"type": "string"} for field in fields}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": plural[:-1]}
    group = "mistakes.example.dev"
    spec = {"group": group, "names": names, "scope": "Cluster", "versions": [version]}
    metadata = {"name": f"{plural}.{group}"}
    return {"apiVersion": CRDS, "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}


def tell(world: Mistakes) -> None:
    """Tell the whole story."""
    a_bystander_is_not_taken_lower(world)
    a_wait_after_a_change_is_for_that_change(world)
    a_rollback_is_told_and_kept(world)
    what_cannot_be_is_refused_in_words(world)
    what_is_asked_for_is_what_is_installed(world)
    a_moved_tag_is_a_revision_and_the_oldest_goes(world)
    of_two_with_the_same_objects_one_wins_whole(world)
    options_pass_to_what_is_created(world)
    a_package_install_that_cannot_be_is_refused_in_words(world)
    values_follow_the_parent(world)
    what_two_need_goes_from_one_to_the_other(world)
    one_too_many_is_refused(world)
    a_field_that_an_api_lacks_is_named(world)
    what_would_go_is_shown_first(world)


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
    """In a condition of the present generation and an Event, whatever is wrong (F4, F8, F9, X10, X12)."""
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
    world.install("left", world.image("left", "v1.0.0"))
    for folder in ("d", "alone", "left", "right"):
        world.until(world.has("v1.0.0", folder))
    named = f"{world.image('c')}:v1.0.0"
    world.until(lambda: world.get("configuration", "c").get("status", {}).get("currentIdentifier") == named)
    assert world.revisions("c").keys() == {1}
    assert "skipDependencyResolution is on" in message_of(world.get("configuration", "alone"), "Installed")
    world.says("configuration", "left", "Installed", "they are installed and removed as one")


def a_moved_tag_is_a_revision_and_the_oldest_goes(world: Mistakes) -> None:
    """With the limit of one former revision that is the default; the same content makes none (X2, X5)."""
    for number in (2, 3):
        world.publish("d", "v1.0.0", objects=(definition("dees", f"field{number}"),))
        world.until(partial(lambda wanted: max(world.revisions("d")) == wanted, number))
    world.until(lambda: world.revisions("d") == {2: "Inactive", 3: "Active"})


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


def package(name: str, version: str, *depends: Object, **spec: Any) -> Object:
    """Return a Package of Carvel's. spec: steps in place of those that it has."""
    short = name.partition(".")[0]
    metadata = {"name": f"{short}-settings", "namespace": NAMESPACE}
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    steps = {
        "fetch": [{"inline": {"paths": {"a.yml": text}}}],
        "template": [{"ytt": {}}],
        "deploy": [{"kapp": {}}],
    }
    whole = {"refName": name, "version": version, "template": {"spec": {**steps, **spec}}}
    metadata = {"name": f"{name}.{version}", "namespace": NAMESPACE}
    return {
        "apiVersion": DATA,
        "kind": "Package",
        "metadata": metadata,
        "spec": {**whole, "dependencies": list(depends)},
    }


def on(name: str, **more: Any) -> Object:
    selection = {"constraints": ">=1.0.0"}
    return {"name": name, "packageRef": {"refName": f"{name}.x.dev", "versionSelection": selection}, **more}


def package_install(name: str, constraints: str = "1.0.0", **spec: Any) -> Object:
    reference = {"refName": f"{name}.x.dev", "versionSelection": {"constraints": constraints}}
    metadata = {"name": name, "namespace": NAMESPACE}
    given = {"serviceAccountName": "mistakes", "packageRef": reference, **spec}
    return {"apiVersion": CARVEL, "kind": "PackageInstall", "metadata": metadata, "spec": given}


def account() -> tuple[Object, ...]:
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": "mistakes", "namespace": NAMESPACE}
    return (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "mistakes", "namespace": NAMESPACE},
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "mistakes"},
            "roleRef": role,
            "subjects": [subject],
        },
    )


def a_package_install_that_cannot_be_is_refused_in_words(world: Mistakes) -> None:
    """And the others are read and installed beside it (F4, F6, F11, C7, C8, C11, C15, C16)."""
    api = {"name": "api", "gvk": {"group": "gadget.x.dev", "version": "v1", "kind": "Gadget"}}
    bees = {"name": "bees", "gvk": {"group": "mistakes.example.dev", "version": "v1", "kind": "Bee"}}
    world.apply(
        *account(),
        package("leaf.x.dev", "1.0.0"),
        package("leaf.x.dev", "1.1.0"),
        package("tree.x.dev", "1.0.0", on("leaf"), on("nobody", optional=True), bees),
        package("wrong.x.dev", "1.0.0", on("leaf")),
        package("gadget.x.dev", "1.0.0", api),
        package("cue.x.dev", "1.0.0", template=[{"cue": {}}]),
        package_install("tree"),
        package_install("leaf2", "1.0.0 ~2"),
        package_install("wrong", dependencies={"override": [{**on("leaf"), "name": "leef"}]}),
        package_install("gadget"),
        package_install("cue"),
    )
    world.says("packageinstall", "leaf2", "ReconcileFailed", "versionSelection.constraints", "no operator")
    world.says("packageinstall", "wrong", "ReconcileFailed", "no such dependency: it has leaf")
    api_words = "needs API gadget.x.dev/v1 Gadget, but no known package provides it"
    world.says("packageinstall", "gadget", "ReconcileFailed", api_words)
    world.says("packageinstall", "cue", "ReconcileFailed", "template.cue is not done here")
    world.until(lambda: conditions_of(world.get("packageinstall", "tree")) == {HEALTHY: "True"})
    leaf, optional, existing = world.get("packageinstall", "tree")["status"]["dependencies"]
    assert (leaf["version"], leaf["packageInstallRef"]["namespace"]) == ("1.1.0", NAMESPACE)
    assert [each["conditions"][0]["type"] for each in (leaf, optional, existing)] == [
        "OwnedPackageInstall",
        "UnknownPackage",
        "ExistingGVK",
    ]
    shown = pvbus("packages", "tree", "--kubeconfig", world.kubeconfig, "-n", NAMESPACE, cwd=world.folder)
    assert shown.code == 1, shown.err
    assert "leaf.x.dev 1.1.0" in shown.out.replace("  ", " ")
    assert "leaf2" in shown.out
    assert "broken: the install cannot be read" in shown.out


def values_follow_the_parent(world: Mistakes) -> None:
    """Values of a dependency come and go with the parent's spec (F3, C2, C3, C5)."""
    leaf = world.get("packageinstall", "tree")["status"]["dependencies"][0]["packageInstallRef"]["name"]
    secret = {
        "metadata": {"name": "leaf-values", "namespace": NAMESPACE},
        "stringData": {"values.yml": "a: 1"},
    }
    world.apply({"apiVersion": "v1", "kind": "Secret", **secret})
    values = [{"name": "leaf", "secretRef": {"name": "leaf-values"}}]
    world.patch("packageinstall", "tree", {"dependencies": {"values": values}})
    world.until(lambda: "values" in world.get("packageinstall", leaf)["spec"])
    world.until(lambda: conditions_of(world.get("packageinstall", "tree")) == {HEALTHY: "True"})
    world.patch("packageinstall", "tree", {"dependencies": None})
    world.until(lambda: "values" not in world.get("packageinstall", leaf)["spec"])
    world.until(lambda: conditions_of(world.get("packageinstall", leaf)) == {HEALTHY: "True"})


def what_two_need_goes_from_one_to_the_other(world: Mistakes) -> None:
    """Then it is nobody's; an edit of it is told; an alternative that is there is taken (C4, C5, C6, C12)."""
    alternatives = [{"packageRef": on(each)["packageRef"]} for each in ("nobody", "leaf")]
    either = {"name": "either", "or": alternatives}
    world.apply(package("wood.x.dev", "1.0.0", either), package_install("wood"))
    world.until(lambda: conditions_of(world.get("packageinstall", "wood")) == {HEALTHY: "True"})
    leaf = world.get("packageinstall", "wood")["status"]["dependencies"][0]["packageInstallRef"]["name"]
    assert owner_of(world, leaf) == "PackageInstall/tree"
    edit = {"packageRef": {"versionSelection": {"constraints": "1.0.0"}}}
    world.patch("packageinstall", leaf, edit)
    words = "somebody has changed spec.packageRef"
    world.until(lambda: words in message_of(world.get("packageinstall", leaf), HEALTHY))
    world.kubectl("delete", "packageinstall", "tree", "--timeout=60s")
    world.until(lambda: owner_of(world, leaf) == "PackageInstall/wood")
    world.kubectl("delete", "packageinstall", "wood", "--timeout=60s")
    world.until(lambda: owner_of(world, leaf) == "")


def owner_of(world: Mistakes, name: str) -> str:
    annotations = world.get("packageinstall", name)["metadata"].get("annotations", {})
    return str(annotations.get("kapp-controller.carvel.dev/owner", ""))


def one_too_many_is_refused(world: Mistakes) -> None:
    """At admission by the embedded server, else by the decision; both name the first one (C9)."""
    single = package("single.x.dev", "1.0.0")
    single["spec"]["installationType"] = "onePerNamespace"
    first = package_install("single")
    world.apply(single, first)
    world.until(lambda: conditions_of(world.get("packageinstall", "single")) == {HEALTHY: "True"})
    second = {**first, "metadata": {**first["metadata"], "name": "second"}}
    done = world.run("apply", "-f", "-", stdin=yaml.safe_dump(second))
    if done.returncode:
        assert "once per namespace" in done.stderr
        assert "single" in done.stderr
        return
    world.says("packageinstall", "second", "ReconcileFailed", "single", "once per namespace")


def a_field_that_an_api_lacks_is_named(world: Mistakes) -> None:
    """It is installed once the served schema has it (C13)."""
    bee = {"name": "bees", "gvk": {"apiVersion": "mistakes.example.dev/v1", "kind": "Bee"}}
    for name, field in (("rich", "colour"), ("poor", "wings")):
        made = package(f"{name}.x.dev", "1.0.0", bee)
        wanted = {"mistakes.example.dev/v1 Bee": [f"spec.{field}"]}
        made["metadata"]["annotations"] = {"pvbus.dev/required-fields": json.dumps(wanted)}
        world.apply(made, package_install(name))
    world.until(lambda: conditions_of(world.get("packageinstall", "rich")) == {HEALTHY: "True"})
    world.says("packageinstall", "poor", "ReconcileFailed", "spec.wings")


def what_would_go_is_shown_first(world: Mistakes) -> None:
    """Nothing is deleted without --yes, nor with others while an install cannot be read (C14)."""
    world.apply(package("user.x.dev", "1.0.0", on("single")), package_install("user"))
    world.until(lambda: conditions_of(world.get("packageinstall", "user")) == {HEALTHY: "True"})
    command = ("packages", "delete", f"{NAMESPACE}/single", "--dependants", "--kubeconfig", world.kubeconfig)
    assert "leaf2 cannot be read" in pvbus(*command, "--yes", cwd=world.folder).err
    world.kubectl("delete", "packageinstall", "leaf2", "--timeout=60s")
    shown = pvbus(*command, cwd=world.folder)
    assert (shown.code, "user" in shown.out) == (1, True), shown.out + shown.err
    assert conditions_of(world.get("packageinstall", "single")) == {HEALTHY: "True"}
    done = pvbus(*command, "--yes", cwd=world.folder)
    assert done.code == 0, done.out + done.err
    left = {each["metadata"]["name"] for each in world.items("packageinstalls.packaging.carvel.dev")}
    assert not left & {"single", "user"}
