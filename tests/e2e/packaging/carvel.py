"""What people of Carvel's family ask for that cannot be, and what they may rely on, on any API server.

Each step of the story says what it proves; it goes on from that of `mistakes`. Packages are inline files.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import yaml

from tests.e2e.cli.command import REPOSITORY, pvbus
from tests.e2e.packaging.mistakes import GROUP, SECRETS, Mistakes
from tests.e2e.packaging.platform import NAMESPACE, Object, conditions_of, message_of

INSTALLS, PACKAGES = "packaging.carvel.dev/v1alpha1", "data.packaging.carvel.dev/v1alpha1"
RBAC = "rbac.authorization.k8s.io"
HEALTHY = "ReconcileSucceeded"
EXAMPLE = REPOSITORY / "examples" / "dependencies" / "carvel.yaml"
GADGET = {"apiVersion": "gadget.x.dev/v1", "kind": "Gadget"}


def tell(world: Mistakes) -> None:
    """Tell the whole story."""
    a_package_install_that_cannot_be_is_refused_in_words(world)
    values_follow_the_parent(world)
    what_two_need_goes_from_one_to_the_other(world)
    what_is_needed_moves_if_all_holders_allow_it(world)
    a_chain_is_created_step_by_step_or_at_once(world)
    one_too_many_is_refused(world)
    a_field_that_an_api_lacks_is_named(world)
    the_example_of_dependencies_gets_ready(world)
    what_would_go_is_shown_first(world)


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
        "apiVersion": PACKAGES,
        "kind": "Package",
        "metadata": metadata,
        "spec": {**whole, "dependencies": list(depends)},
    }


def on(name: str, constraints: str = ">=1.0.0", **more: Any) -> Object:
    selection = {"constraints": constraints}
    return {"name": name, "packageRef": {"refName": f"{name}.x.dev", "versionSelection": selection}, **more}


def package_install(
    name: str, constraints: str = "1.0.0", annotations: Mapping[str, str] | None = None, **spec: Any
) -> Object:
    reference = {"refName": f"{name}.x.dev", "versionSelection": {"constraints": constraints}}
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": {**(annotations or {})}}
    given = {"serviceAccountName": "mistakes", "packageRef": reference, **spec}
    return {"apiVersion": INSTALLS, "kind": "PackageInstall", "metadata": metadata, "spec": given}


def account() -> tuple[Object, ...]:
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": "mistakes", "namespace": NAMESPACE}
    return (
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": x}} for x in (NAMESPACE, SECRETS)),
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
    bees = {"name": "bees", "gvk": {"group": GROUP, "version": "v1", "kind": "Bee"}}
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
        package("none.x.dev", "1.0.0"),
        package("lone.x.dev", "1.0.0", on("none")),
        package_install("lone", dependencies={"managedBy": "User"}),
    )
    world.says("packageinstall", "leaf2", "ReconcileFailed", "versionSelection.constraints", "no operator")
    world.says("packageinstall", "wrong", "ReconcileFailed", "no such dependency: it has leaf")
    api_words = "needs API gadget.x.dev/v1 Gadget, but no known package provides it"
    world.says("packageinstall", "gadget", "ReconcileFailed", api_words)
    world.says("packageinstall", "cue", "ReconcileFailed", "template.cue is not done here")
    words = "needs none.x.dev >=1.0.0, which may not be installed for it, and is not there"
    world.says("packageinstall", "lone", "ReconcileFailed", words)
    until_healthy(world, "tree")
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
    an_api_is_that_of_a_package_that_is_installed(world)


def an_api_is_that_of_a_package_that_is_installed(world: Mistakes) -> None:
    """Nobody searches a provider who is not asked to; the one that there is is named (C7)."""
    maker = package("maker.x.dev", "1.0.0")
    maker["spec"]["provides"] = [GADGET]
    world.apply(maker)
    world.says("packageinstall", "gadget", "ReconcileFailed", "is provided by maker.x.dev: install it")
    world.apply(package_install("maker"))
    until_healthy(world, "gadget")


def until_healthy(world: Mistakes, *names: str) -> None:
    for name in names:
        world.until(partial(_is_healthy, world, name))


def _is_healthy(world: Mistakes, name: str) -> bool:
    return conditions_of(world.get("packageinstall", name)) == {HEALTHY: "True"}


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
    until_healthy(world, "tree")
    world.patch("packageinstall", "tree", {"dependencies": None})
    world.until(lambda: "values" not in world.get("packageinstall", leaf)["spec"])
    until_healthy(world, leaf)


def what_two_need_goes_from_one_to_the_other(world: Mistakes) -> None:
    """Then it is nobody's; an edit of it is told; an alternative that is there is taken (C4, C5, C6, C12)."""
    alternatives = [{"packageRef": on(each)["packageRef"]} for each in ("nobody", "leaf")]
    either = {"name": "either", "or": alternatives}
    world.apply(package("wood.x.dev", "1.0.0", either), package_install("wood"))
    until_healthy(world, "wood")
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
    return owner_in(world.get("packageinstall", name))


def owner_in(install: Object) -> str:
    annotations = install["metadata"].get("annotations", {})
    return str(annotations.get("kapp-controller.carvel.dev/owner", ""))


def what_is_needed_moves_if_all_holders_allow_it(world: Mistakes) -> None:
    """Else it stays, and who needs another one waits; prereleases are for those who name them (C4, C10)."""
    selection = {"constraints": ">=1.0.0", "prereleases": {"identifiers": ["rc"]}}
    early = package_install("early")
    early["spec"]["packageRef"]["versionSelection"] = selection
    world.apply(
        *(package("base.x.dev", version) for version in ("1.0.0", "2.0.0", "2.1.0-beta.1")),
        *(package("early.x.dev", version) for version in ("1.0.0", "1.1.0-beta.1", "1.1.0-rc.1")),
        package("old.x.dev", "1.0.0", on("base", ">=1.0.0 <2.0.0")),
        package("old.x.dev", "1.1.0", on("base")),
        package("new.x.dev", "1.0.0", on("base", ">=2.0.0")),
        package_install("old"),
        early,
    )
    until_healthy(world, "old", "early")
    assert world.get("packageinstall", "early")["status"]["version"] == "1.1.0-rc.1"
    world.apply(package_install("new"))
    words = "needs base.x.dev >=2.0.0, but old.x.dev 1.0.0"
    world.says("packageinstall", "new", "ReconcileFailed", words)
    (found,) = world.get("packageinstall", "new")["status"]["dependencies"]
    assert found["conditions"][0]["type"] == "FoundPackageInstallRequiresDifferentVersion"
    assert world.versions()["base"] == "1.0.0"
    world.patch("packageinstall", "old", {"packageRef": {"versionSelection": {"constraints": "1.1.0"}}})
    until_healthy(world, "new", "old")
    assert world.versions()["base"] == "2.0.0"


def a_chain_is_created_step_by_step_or_at_once(world: Mistakes) -> None:
    """Each holds the next one, or the first all; what goes with it is as it says (C3, C5)."""
    ways = {"p": ("direct", "delete"), "q": ("closure", "keep-if-used")}
    for name, (strategy, removal) in ways.items():
        annotations = {
            "pvbus.dev/dependency-strategy": strategy,
            "pvbus.dev/dependency-removal": removal,
        }
        world.apply(
            package(f"{name}1.x.dev", "1.0.0", on(f"{name}2")),
            package(f"{name}2.x.dev", "1.0.0", on(f"{name}3")),
            package(f"{name}3.x.dev", "1.0.0"),
            package_install(f"{name}1", annotations=annotations),
        )
    until_healthy(world, "p1", "q1")
    found = world.installs()
    (second,) = (found["p2"]["metadata"]["name"],)
    owners = {name: owner_in(found[name]) for name in ("p2", "p3", "q2", "q3")}
    first = f"PackageInstall/{second}"
    assert owners == {
        "p2": "PackageInstall/p1",
        "p3": first,
        "q2": "PackageInstall/q1",
        "q3": "PackageInstall/q1",
    }
    world.apply(
        package("using.x.dev", "1.0.0", on("q3")),
        package_install("using", dependencies={"managedBy": "User"}),
    )
    until_healthy(world, "using")
    world.kubectl("delete", "packageinstall", "p1", "q1", "--timeout=60s")
    world.until(lambda: not {"p2", "p3", "q2"} & world.installs().keys())
    assert owner_in(world.installs()["q3"]) == ""


def one_too_many_is_refused(world: Mistakes) -> None:
    """At admission by the embedded server, else by the decision; both name the first one (C9)."""
    single = package("single.x.dev", "1.0.0")
    single["spec"]["installationType"] = "onePerNamespace"
    first = package_install("single")
    world.apply(single, first)
    until_healthy(world, "single")
    second = {**first, "metadata": {**first["metadata"], "name": "second"}}
    done = world.run("apply", "-f", "-", stdin=yaml.safe_dump(second))
    if done.returncode:
        assert "once per namespace" in done.stderr
        assert "single" in done.stderr
        return
    world.says("packageinstall", "second", "ReconcileFailed", "single", "once per namespace")


def a_field_that_an_api_lacks_is_named(world: Mistakes) -> None:
    """It is installed once the served schema has it (C13)."""
    bee = {"name": "bees", "gvk": {"apiVersion": f"{GROUP}/v1", "kind": "Bee"}}
    for name, field in (("rich", "colour"), ("poor", "wings")):
        made = package(f"{name}.x.dev", "1.0.0", bee)
        wanted = {f"{GROUP}/v1 Bee": [f"spec.{field}"]}
        made["metadata"]["annotations"] = {"pvbus.dev/required-fields": json.dumps(wanted)}
        world.apply(made, package_install(name))
    until_healthy(world, "rich")
    world.says("packageinstall", "poor", "ReconcileFailed", "spec.wings")


def the_example_of_dependencies_gets_ready(world: Mistakes) -> None:
    """What it needs is created and installed, but for the optional package, which nobody has (C17)."""
    world.kubectl("apply", "-f", str(EXAMPLE), "--namespace=demo")
    waiting = ("--for=condition=ReconcileSucceeded", "--timeout=80s", "--namespace=demo")
    world.kubectl("wait", "packageinstall/pkg-demo", *waiting)
    world.until(
        lambda: len([name for name in world.versions() if name in ("pkg", "pkg2", "pkg3", "certs")]) == 4
    )


def what_would_go_is_shown_first(world: Mistakes) -> None:
    """Nothing is deleted without --yes, nor with others while an install cannot be read (C14)."""
    world.apply(package("user.x.dev", "1.0.0", on("single")), package_install("user"))
    until_healthy(world, "user")
    command = ("packages", "delete", f"{NAMESPACE}/single", "--dependants", "--kubeconfig", world.kubeconfig)
    assert "leaf2 cannot be read" in pvbus(*command, "--yes", cwd=world.folder).err
    world.kubectl("delete", "packageinstall", "leaf2", "--timeout=60s")
    shown = pvbus(*command, cwd=world.folder)
    assert (shown.code, "user" in shown.out) == (1, True), shown.out + shown.err
    assert conditions_of(world.get("packageinstall", "single")) == {HEALTHY: "True"}
    done = pvbus(*command, "--yes", cwd=world.folder)
    assert done.code == 0, done.out + done.err
    world.until(lambda: not {"single", "user"} & names_of_installs(world))


def names_of_installs(world: Mistakes) -> set[str]:
    return {each["metadata"]["name"] for each in world.items("packageinstalls.packaging.carvel.dev")}
