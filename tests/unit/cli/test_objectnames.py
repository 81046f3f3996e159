"""How a command line names an object: all spellings, and what is answered to others."""

from pathlib import Path

import pytest
import yaml

from pvbus.cli.objectnames import NAMED_KINDS, Named, Scope, kind_of, named
from pvbus.core.errors import UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import REPOSITORY, REVISION, SET, VARIANT
from pvbus.core.kernel.packagekinds import CROSSPLANE_GROUP
from pvbus.install.packagekinds import carvel_crds, crossplane_crds, packaging_crds
from tests.e2e.cli.command import REPOSITORY as CHECKOUT

WEB = Key("default", "web")
BOTH = (VARIANT, SET)


@pytest.mark.parametrize(
    ("line", "namespace", "expected"),
    [
        ("web", None, Named(None, WEB)),
        ("web", "prod", Named(None, Key("prod", "web"))),
        ("default/web", None, Named(None, WEB)),
        ("default/web", "default", Named(None, WEB)),
        ("pvs web", None, Named(SET, WEB)),
        ("pvs/web", None, Named(SET, WEB)),
        ("pvs/web", "prod", Named(SET, Key("prod", "web"))),
        ("pvs prod/web", None, Named(SET, Key("prod", "web"))),
        ("PackageVariantSet/prod/web", None, Named(SET, Key("prod", "web"))),
        ("packagevariants web", None, Named(VARIANT, WEB)),
        ("packagevariantsets.config.porch.kpt.dev web", None, Named(SET, WEB)),
        ("pv pv", None, Named(VARIANT, Key("default", "pv"))),
        ("default/pv", None, Named(None, Key("default", "pv"))),
    ],
)
def test_an_object_is_named_as_with_kubectl(
    tmp_path: Path, line: str, namespace: str | None, expected: Named
) -> None:
    assert named(line.split(), BOTH, Scope(namespace, str(tmp_path))) == expected


@pytest.mark.parametrize(
    ("line", "rest_max", "rest"),
    [
        ("r Certified", 1, ("Certified",)),
        ("packagerevision r Certified", 1, ("Certified",)),
        ("packagerevision/r A=True B=True", None, ("A=True", "B=True")),
        ("r", 1, ()),
    ],
)
def test_words_after_the_name_stay(
    tmp_path: Path, line: str, rest_max: int | None, rest: tuple[str, ...]
) -> None:
    found = named(line.split(), (REVISION,), Scope(None, str(tmp_path)), rest_max=rest_max)
    assert (found.key, found.rest) == (Key("default", "r"), rest)


@pytest.mark.parametrize(
    ("line", "namespace", "words"),
    [
        ("", None, "the name is missing: give NAMESPACE/NAME, pv/NAME or pv NAME, also with -n NAMESPACE"),
        ("pvs", None, '"pvs" is a kind, and the name is missing: give NAMESPACE/NAME, pvs/NAME'),
        (
            "repo x",
            None,
            "this command takes no Repository, but a PackageVariant (pv) or a Packa",
        ),
        (
            "set web",
            None,
            '"set" is no kind: this command takes a PackageVariant (pv) or a Packa',
        ),
        ("packagevariants.example.org web", None, "is no kind"),
        ("pvs web edge", None, '"pvs web edge" has more than one name'),
        ("a/b/c", None, '"a/b/c" names no object'),
        ("/web", None, '"/web" names no object'),
        ("web/", None, '"web/" names no object'),
        ("pvs/", None, '"pvs/" names no object: give NAMESPACE/NAME, pvs/NAME'),
        ("default/web", "prod", '"default/web" and -n prod name two namespaces'),
    ],
)
def test_what_names_no_object_is_answered_with_what_to_type(
    tmp_path: Path, line: str, namespace: str | None, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        named(line.split(), BOTH, Scope(namespace, str(tmp_path)))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("kubeconfig", "namespace"),
    [
        ("{current-context: b, contexts: [{name: a, context: {namespace: no}}, "
         "{name: b, context: {namespace: prod}}]}", "prod"),
        ("{current-context: a, contexts: [{name: a, context: {cluster: c}}]}", "default"),
        ("{current-context: gone, contexts: []}", "default"),
        ("contexts: 3", "default"),
        ("[", "default"),
        ("", "default"),
        (None, "default"),
    ],
)  # fmt: skip
def test_a_name_alone_is_in_the_namespace_of_the_kubeconfig(
    tmp_path: Path, kubeconfig: str | None, namespace: str
) -> None:
    """Also that of a data folder; one that cannot be read is reported by what connects with it."""
    if kubeconfig is not None:
        (tmp_path / "kubeconfig").write_text(kubeconfig)
    for scope in (Scope(None, str(tmp_path)), Scope(None, "other", str(tmp_path / "kubeconfig"))):
        assert named(["web"], BOTH, scope).key == Key(namespace, "web")


def test_kinds_have_the_words_that_kubectl_takes() -> None:
    """Those of the CustomResourceDefinitions; package revisions have none."""
    files = (CHECKOUT / "schemas" / "crds").glob("*.yaml")
    definitions = [yaml.safe_load(file.read_text()) for file in files]
    definitions += [*packaging_crds(), *crossplane_crds(), *carvel_crds()]
    specs = [each["spec"] for each in definitions]
    words = {Kind(each["group"], each["names"]["kind"]): each["names"] for each in specs}
    defined = [kind for kind in NAMED_KINDS if kind in words]
    assert len(defined) == len(NAMED_KINDS) - 1
    for kind in defined:
        texts = [words[kind][key] for key in ("kind", "plural", "singular")]
        assert {kind_of(text) for text in (*texts, *words[kind].get("shortNames", ()))} == {kind}


def test_an_install_of_crossplanes_family_has_no_namespace() -> None:
    """Whatever the kubeconfig says; its revisions are named alike."""
    scope = Scope("prod", "nowhere")
    assert named(["provider/aws"], NAMED_KINDS, scope) == Named(
        Kind(CROSSPLANE_GROUP, "Provider"), Key("", "aws")
    )
    assert named(["functionrevision", "f-1"], NAMED_KINDS, scope).key == Key("", "f-1")
    with pytest.raises(UsageError, match="a Provider has no namespace: give provider/NAME"):
        named(["provider/prod/aws"], NAMED_KINDS, scope)
    assert kind_of("Repo") == REPOSITORY
