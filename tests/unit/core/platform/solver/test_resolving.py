"""The worked examples of the two proposals that concern resolving, and what a solution says."""

import cProfile

import msgspec
import pytest

from pvbus.core.platform.packaging.statuses import refusal_words
from pvbus.core.platform.solver.model import (
    AnyOf,
    Candidate,
    Conflict,
    OfferNeed,
    Package,
    PackageNeed,
    PlatformNeed,
    Policy,
    Problem,
    Requirement,
    Resolution,
    Target,
    VersionPolicy,
    Wish,
)
from pvbus.core.platform.solver.resolving import resolve
from pvbus.core.platform.solver.states import DependencyReport, DependencyState, dependencies_of
from pvbus.core.platform.solver.transaction import actions_of, creations_of
from tests.unit.core.platform.solver.problems import MAIN_API, installed, pkg, wish

TREE = (
    pkg("pkg", {"1.0.0": ["pkg1 >=1.0.0", "pkg3 =1.0.0"]}),
    pkg("pkg1", {"1.0.0": ["pkg2 >=1.0.0"]}),
    pkg("pkg2", {"1.0.0": []}),
    pkg("pkg3", {"1.0.0": []}),
)


def versions(resolution: Resolution) -> dict[str, str]:
    return {each.package: each.version for each in resolution.chosen}


def sentence(resolution: Resolution, index: int = -1) -> str:
    explanation = resolution.outcomes[index].explanation
    assert explanation is not None
    return explanation.sentence


def reports(problem: Problem) -> dict[str, DependencyReport]:
    resolution = resolve(problem)
    index = [outcome.wish.package for outcome in resolution.outcomes].index("pkg")
    found = dependencies_of(problem, resolution)[index]
    return {str(index): each for index, each in enumerate(found)}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("direct", [["pkg -> pkg1", "pkg -> pkg3"], ["pkg1 -> pkg2"]]),
        ("closure", [["pkg -> pkg1", "pkg -> pkg3", "pkg -> pkg2"]]),
    ],
)
def test_the_two_trees_of_carvels_proposal(strategy: str, expected: list[list[str]]) -> None:
    """Each install creates its direct dependencies only, or, as a strategy, the first creates the whole
    closure.
    """
    problem = Problem(packages=TREE, wishes=(wish("pkg"),))
    rounds = creations_of(problem, resolve(problem), "direct" if strategy == "direct" else "closure")
    assert [[f"{each.owner[1]} -> {each.package}" for each in made] for made in rounds] == expected


def test_what_is_installed_and_matches_is_used() -> None:
    """Use case 1: no new installation, and the state says that an install was found."""
    problem = Problem(packages=TREE, wishes=(wish("pkg"),), installed=(installed("pkg1 1.0.0"),))
    actions = {each.package: each.action for each in actions_of(problem, resolve(problem))}
    assert actions == {"pkg": "install", "pkg1": "keep", "pkg2": "install", "pkg3": "install"}
    assert reports(problem)["0"].state is DependencyState.FOUND
    assert reports(problem)["1"].state is DependencyState.OWNED


def test_what_is_absent_is_installed_before_what_needs_it() -> None:
    """Use case 2: dependencies come in earlier steps."""
    problem = Problem(packages=TREE, wishes=(wish("pkg"),))
    actions = actions_of(problem, resolve(problem))
    steps = {each.package: each.step for each in actions}
    assert {each.action for each in actions} == {"install"}
    assert steps == {"pkg2": 0, "pkg3": 0, "pkg1": 1, "pkg": 2}


def test_a_version_that_does_not_fit_moves_when_every_holder_allows_it() -> None:
    """Use case 3: the installed dependency is upgraded, as the other holder allows it."""
    packages = (
        pkg("pkg", {"1.0.0": ["dep >=2.0.0"]}),
        pkg("other", {"1.0.0": ["dep >=1.0.0"]}),
        pkg("dep", {"1.0.0": [], "2.0.0": [], "3.0.0": []}),
    )
    state = (installed("other 1.0.0"), installed("dep 1.0.0"))
    policy = Policy(versions="minimal-change")
    problem = Problem(packages=packages, wishes=(wish("pkg"), wish("other")), installed=state, policy=policy)
    actions = {each.package: (each.action, each.after) for each in actions_of(problem, resolve(problem))}
    assert actions == {"dep": ("upgrade", "2.0.0"), "other": ("keep", "1.0.0"), "pkg": ("install", "1.0.0")}


def test_a_version_that_another_holder_needs_stays_and_is_reported() -> None:
    """Use case 3, refused: the other holder goes on, and the newcomer names it."""
    packages = (
        pkg("pkg", {"1.0.0": ["dep >=2.0.0"]}),
        pkg("other", {"1.0.0": ["dep <2.0.0"]}),
        pkg("dep", {"1.0.0": [], "2.0.0": []}),
    )
    state = (installed("other 1.0.0"), installed("dep 1.0.0"))
    problem = Problem(packages=packages, wishes=(wish("pkg"), wish("other")), installed=state)
    resolution = resolve(problem)
    assert [each.status for each in resolution.outcomes] == ["granted", "quarantined"]
    assert versions(resolution) == {"other": "1.0.0", "dep": "1.0.0"}
    assert sentence(resolution) == "other 1.0.0 needs dep <2.0.0, but pkg 1.0.0 needs dep >=2.0.0"
    assert reports(problem)["0"].state is DependencyState.REQUIRES_DIFFERENT_VERSION


@pytest.mark.parametrize("text", ["offer gateway or dep >=1.0.0", "dep >=1.0.0", "offer route"])
def test_what_serves_a_refused_version_is_found_and_not_waited_for(text: str) -> None:
    """The version is refused for another of its dependencies."""
    packages = (
        pkg("pkg", {"1.0.0": [text, "none"]}),
        pkg("dep", {"1.2.0": [], "2.0.0": []}, {"1.2.0": ("route",)}),
    )
    problem = Problem(packages=packages, wishes=(wish("pkg"),), installed=(installed("dep 1.2.0"),))
    report = reports(problem)["0"]
    assert (report.state, report.provider, report.version) == (DependencyState.FOUND, "dep", "1.2.0")


@pytest.mark.parametrize(
    ("packages", "state", "words"),
    [
        ((), DependencyState.UNKNOWN_PACKAGE, "pkg 1.0.0 needs dep >=2.0.0, but no package dep is known"),
        (
            (pkg("dep", {"1.0.0": [], "1.1.0": []}),),
            DependencyState.UNKNOWN_VERSION,
            "pkg 1.0.0 needs dep >=2.0.0, but dep has only 1.0.0 and 1.1.0",
        ),
    ],
    ids=["no package", "no version"],
)
def test_what_no_package_fulfils_fails(
    packages: tuple[Package, ...], state: DependencyState, words: str
) -> None:
    """Use case 4: the installation fails, with the reason."""
    problem = Problem(packages=(pkg("pkg", {"1.0.0": ["dep >=2.0.0"]}), *packages), wishes=(wish("pkg"),))
    resolution = resolve(problem)
    assert resolution.chosen == ()
    assert sentence(resolution) == words
    assert reports(problem)["0"].state is state


SEED = (
    pkg("pkg", {"1.0.0": [f"offer {MAIN_API} or pkg2 >=1.0.0", "pkg3 =0.1.0", "?pkg4 =0.2.0"]}),
    pkg("pkg2", {"1.0.0": [], "1.1.0": []}),
    pkg("pkg3", {"0.1.0": []}),
)


@pytest.mark.parametrize(
    ("offers", "state", "expected"),
    [
        ((), (), {"pkg": "1.0.0", "pkg2": "1.1.0", "pkg3": "0.1.0"}),
        ((MAIN_API,), (), {"pkg": "1.0.0", "pkg3": "0.1.0"}),
        ((), ("pkg2 1.0.0",), {"pkg": "1.0.0", "pkg2": "1.1.0", "pkg3": "0.1.0"}),
    ],
    ids=["nothing is there", "the API is there", "the package is there"],
)
def test_an_alternative_is_what_exists_then_the_first(
    offers: tuple[str, ...], state: tuple[str, ...], expected: dict[str, str]
) -> None:
    """The example of the proposal with an API or a package; the optional fourth package is unknown, and
    reported.
    """
    problem = Problem(
        packages=SEED,
        wishes=(wish("pkg"),),
        installed=tuple(installed(each) for each in state),
        targets=(Target(offers=offers),),
    )
    assert versions(resolve(problem)) == expected
    assert reports(problem)["0"].state is (
        DependencyState.EXISTING_GVK if offers else DependencyState.FOUND if state else DependencyState.OWNED
    )
    assert reports(problem)["2"].state is DependencyState.UNMET


def test_an_installed_later_alternative_wins_over_an_absent_earlier_one() -> None:
    """`or` installs nothing while something that is there serves."""
    packages = (pkg("pkg", {"1.0.0": ["a or b"]}), pkg("a", {"1.0.0": []}), pkg("b", {"1.0.0": []}))
    without = Problem(packages=packages, wishes=(wish("pkg"),))
    with_b = Problem(packages=packages, wishes=(wish("pkg"),), installed=(installed("b 1.0.0"),))
    assert versions(resolve(without)) == {"pkg": "1.0.0", "a": "1.0.0"}
    assert versions(resolve(with_b)) == {"pkg": "1.0.0", "b": "1.0.0"}


PROVIDER = pkg("provider", {"1.0.0": []}, {"1.0.0": (MAIN_API,)})
SECOND = pkg("second", {"1.0.0": []}, {"1.0.0": (MAIN_API,)})
CONSUMER = pkg("pkg", {"1.0.0": [f"offer {MAIN_API}"]})


@pytest.mark.parametrize(
    ("packages", "search", "wishes", "expected"),
    [
        ((PROVIDER,), False, ("pkg",), {}),
        ((PROVIDER,), False, ("pkg", "provider"), {"pkg": "1.0.0", "provider": "1.0.0"}),
        ((PROVIDER,), True, ("pkg",), {"pkg": "1.0.0", "provider": "1.0.0"}),
        ((PROVIDER, SECOND), True, ("pkg",), {}),
        ((PROVIDER, SECOND), True, ("pkg", "second"), {"pkg": "1.0.0", "second": "1.0.0"}),
    ],
    ids=["search is off", "a user wants it", "search is on", "ambiguous", "a user chose"],
)
def test_an_api_is_provided_by_a_package_that_has_a_reason_to_be_there(
    packages: tuple[Package, ...], search: bool, wishes: tuple[str, ...], expected: dict[str, str]
) -> None:
    """Nothing is installed for an API unless the search is on and there is one provider; else the user is
    asked.
    """
    problem = Problem(
        packages=(CONSUMER, *packages),
        wishes=tuple(wish(each) for each in wishes),
        policy=Policy(search=search),
    )
    assert versions(resolve(problem)) == expected
    if not expected and search:
        report = reports(problem)["0"]
        assert (report.state, report.candidates) == (DependencyState.AMBIGUOUS, ("provider", "second"))


def test_an_optional_dependency_is_installed_where_it_can_be_and_never_blocks() -> None:
    """It is there if it fits, and left out if it does not."""
    packages = (
        pkg("pkg", {"1.0.0": ["?extra", "base <2.0.0"]}),
        pkg("extra", {"1.0.0": ["base >=1.0.0"], "2.0.0": ["base >=2.0.0"]}),
        pkg("base", {"1.0.0": [], "2.0.0": []}),
    )
    fits = resolve(Problem(packages=packages, wishes=(wish("pkg"),)))
    assert versions(fits) == {"pkg": "1.0.0", "extra": "1.0.0", "base": "1.0.0"}
    only_two = (packages[0], pkg("extra", {"2.0.0": ["base >=2.0.0"]}), packages[2])
    left_out = resolve(Problem(packages=only_two, wishes=(wish("pkg"),)))
    assert versions(left_out) == {"pkg": "1.0.0", "base": "1.0.0"}


def test_an_explanation_names_the_pin() -> None:
    """The sentence of two packages that need the third in ranges that exclude each other."""
    packages = (
        pkg("A", {"2.1.0": ["B >=3"]}),
        pkg("B", {"2.0.0": [], "3.0.0": []}),
        pkg("C", {"1.4.0": ["B <3"]}),
    )
    resolution = resolve(Problem(packages=packages, wishes=(wish("A"), wish("C =1.4.0", pinned=True))))
    assert sentence(resolution) == "A 2.1.0 needs B >=3, but C 1.4.0, pinned by you, needs B <3"
    assert versions(resolution) == {"C": "1.4.0", "B": "2.0.0"}


def test_a_broken_package_stops_only_what_needs_it() -> None:
    """A missing dependency quarantines its holder and the holder's holder; everything else is installed."""
    packages = (
        pkg("top", {"1.0.0": ["broken"]}),
        pkg("broken", {"1.0.0": ["gone"]}),
        pkg("fine", {"1.0.0": ["shared"]}),
        pkg("shared", {"1.0.0": []}),
    )
    state = (installed("top 1.0.0"), installed("broken 1.0.0"))
    problem = Problem(packages=packages, wishes=(wish("top"), wish("fine")), installed=state)
    resolution = resolve(problem)
    assert versions(resolution) == {"fine": "1.0.0", "shared": "1.0.0"}
    assert resolution.components == 2
    held = {each.package: each.action for each in actions_of(problem, resolution)}
    assert held == {"fine": "install", "shared": "install", "top": "hold", "broken": "hold"}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("highest", {"a": "3.0.0", "b": "3.0.0", "c": "2.0.0"}),
        ("minimal-change", {"a": "2.0.0", "b": "1.0.0", "c": "2.0.0"}),
        ("lowest-satisfying", {"a": "2.0.0", "b": "1.0.0", "c": "1.0.0"}),
    ],
)
def test_each_policy_chooses_among_what_is_possible(policy: VersionPolicy, expected: dict[str, str]) -> None:
    """`a` has to rise from 1.0.0, `b` may stay at 1.0.0, and `c` is new."""
    packages = (
        pkg("a", {"1.0.0": [], "2.0.0": [], "3.0.0": []}),
        pkg("b", {"1.0.0": [], "2.0.0": [], "3.0.0": []}),
        pkg("c", {"1.0.0": [], "2.0.0": []}),
    )
    problem = Problem(
        packages=packages,
        wishes=(wish("a >=2.0.0"), wish("b"), wish("c")),
        installed=(installed("a 1.0.0"), installed("b 1.0.0")),
        policy=Policy(versions=policy),
    )
    assert versions(resolve(problem)) == expected


def test_the_fewest_installed_packages_change() -> None:
    """A newer first package would move two others; an older one of it moves none."""
    packages = (
        pkg("a", {"1.0.0": [], "2.0.0": ["b >=2.0.0", "c >=2.0.0"], "3.0.0": []}),
        pkg("b", {"1.0.0": [], "2.0.0": []}),
        pkg("c", {"1.0.0": [], "2.0.0": []}),
    )
    problem = Problem(
        packages=packages,
        wishes=(wish("a >=2.0.0"), wish("b"), wish("c")),
        installed=tuple(installed(f"{name} 1.0.0") for name in "abc"),
        policy=Policy(versions="minimal-change"),
    )
    assert versions(resolve(problem)) == {"a": "3.0.0", "b": "1.0.0", "c": "1.0.0"}


def test_downgrades_need_permission() -> None:
    """Without it the reason is named, with it the lower version is chosen."""
    packages = (pkg("a", {"1.0.0": [], "2.0.0": []}),)
    problem = Problem(packages=packages, wishes=(wish("a <2.0.0"),), installed=(installed("a 2.0.0"),))
    resolution = resolve(problem)
    assert resolution.outcomes[0].status == "stays"
    assert (
        sentence(resolution) == "you want a <2.0.0, but a 2.0.0 is installed, and downgrades are not allowed"
    )
    allowed = Problem(
        packages=packages, wishes=problem.wishes, installed=problem.installed, policy=Policy(downgrades=True)
    )
    assert actions_of(allowed, resolve(allowed))[0].action == "downgrade"
    by_itself = tuple(msgspec.structs.replace(each, is_downgradable=True) for each in problem.installed)
    allowed = msgspec.structs.replace(problem, installed=by_itself)
    assert actions_of(allowed, resolve(allowed))[0].action == "downgrade"


def test_cycles_are_reported_and_are_one_step() -> None:
    """Two packages that need each other are installed together."""
    packages = (pkg("a", {"1.0.0": ["b"]}), pkg("b", {"1.0.0": ["a"]}), pkg("c", {"1.0.0": ["a"]}))
    problem = Problem(packages=packages, wishes=(wish("c"),))
    resolution = resolve(problem)
    assert resolution.cycles == ((("", "a"), ("", "b")),)
    assert {each.package: each.step for each in actions_of(problem, resolution)} == {
        "a": 0,
        "b": 0,
        "c": 1,
    }


def test_a_need_in_another_target_is_installed_there_and_first() -> None:
    """The database cluster comes before the application clusters."""
    packages = (pkg("app", {"1.0.0": ["db >=1.0.0@data"]}), pkg("db", {"1.0.0": []}))
    problem = Problem(packages=packages, wishes=(wish("app@east"), wish("app@west")))
    actions = actions_of(problem, resolve(problem))
    assert [(each.step, each.package, each.target) for each in actions] == [
        (0, "db", "data"),
        (1, "app", "east"),
        (1, "app", "west"),
    ]


def test_a_digest_names_one_content() -> None:
    """A need by digest and a need by range of the same package hold together."""
    digest = "sha256:" + "a" * 64
    packages = (
        Package(
            name="a",
            candidates=(
                Candidate(
                    version="1.0.0",
                    requirements=(Requirement(need=PackageNeed(package="b", digest=digest)),),
                ),
            ),
        ),
        Package(name="b", candidates=(Candidate(version="1.0.0", digest=digest), Candidate(version="2.0.0"))),
    )
    assert versions(resolve(Problem(packages=packages, wishes=(wish("a"), wish("b >=1.0.0"))))) == {
        "a": "1.0.0",
        "b": "1.0.0",
    }


def test_the_platform_limits_versions_unless_it_is_ignored() -> None:
    """The highest version that the platform allows is chosen; the switch lets the highest of all through."""
    new = Candidate(
        version="2.0.0",
        requirements=(Requirement(need=PlatformNeed(platform="crossplane", range=">=2.0.0")),),
    )
    packages = (Package(name="a", candidates=(Candidate(version="1.0.0"), new)),)
    targets = (Target(platforms=(("crossplane", "1.20.0"),)),)
    for ignore, expected in ((False, "1.0.0"), (True, "2.0.0")):
        problem = Problem(
            packages=packages, wishes=(wish("a"),), targets=targets, policy=Policy(ignore_platforms=ignore)
        )
        assert versions(resolve(problem)) == {"a": expected}
    strict = resolve(Problem(packages=packages, wishes=(wish("a >=2"),), targets=targets))
    assert sentence(strict) == "you want a >=2, but a 2.0.0 needs crossplane >=2.0.0, and 1.20.0 runs"


def test_an_api_that_nobody_provides_is_said_so() -> None:
    """In one clause, and the pinned version by its name and not by its digest."""
    need = Requirement(need=OfferNeed(offer=MAIN_API))
    new = Candidate(version="1.0.0", digest="sha256:1f", requirements=(need,))
    pinned = Wish(package="a", digest="sha256:1f", pinned=True)
    packages = (Package(name="a", candidates=(new,)), pkg("b", {"1.0.0": []}))
    refused = resolve(Problem(packages=packages, wishes=(pinned, wish("b"))))
    assert (
        sentence(refused, 0) == f"a 1.0.0, pinned by you, needs {MAIN_API}, but no known package provides it"
    )
    (explanation,) = [each.explanation for each in refused.outcomes if each.explanation is not None]
    assert explanation.reasons[0] == "you pin a 1.0.0"


def test_a_platform_without_a_known_version_is_said_to_be_unknown() -> None:
    """Its versions were not too low: nobody has said which one there is."""
    need = Requirement(need=PlatformNeed(platform="crossplane", range=">=2.0.0"))
    packages = (Package(name="a", candidates=(Candidate(version="2.0.0", requirements=(need,)),)),)
    refused = resolve(Problem(packages=packages, wishes=(wish("a"),), targets=(Target(),)))
    words = "you want a, but a 2.0.0 needs crossplane >=2.0.0, and no version of crossplane is known"
    assert sentence(refused) == words
    (outcome,) = refused.outcomes
    assert outcome.explanation is not None
    assert outcome.explanation.unknown_platforms == ("crossplane",)
    advice = "set crossplane=<version> in PVBUS_PLATFORMS, or the switch in the install"
    assert refusal_words(outcome.explanation, "the switch") == f"{words}: {advice}"


def test_a_conflict_excludes_its_package() -> None:
    """The newcomer loses, and the explanation says who excludes it."""
    packages = (
        Package(
            name="a",
            candidates=(Candidate(version="1.0.0", conflicts=(Conflict(package="b", range="<2.0.0"),)),),
        ),
        pkg("b", {"1.0.0": []}),
    )
    problem = Problem(packages=packages, wishes=(wish("a"), wish("b")))
    resolution = resolve(problem)
    assert versions(resolution) == {"a": "1.0.0"}
    assert (
        sentence(resolution) == "you want a; you want b; a 1.0.0 excludes b <2.0.0: these exclude each other"
    )


def pigeons(count: int) -> tuple[Package, ...]:
    """Return packages that each need a hole of their own, of which there is one too few, and `all`, which
    needs each of them: nothing is harder to disprove for its size.
    """
    holes = [
        pkg(f"hole{hole}", {f"{bird + 1}.0.0": [] for bird in range(count)}) for hole in range(count - 1)
    ]
    birds = []
    for bird in range(count):
        needs = tuple(
            PackageNeed(package=f"hole{hole}", range=f"={bird + 1}.0.0") for hole in range(count - 1)
        )
        candidate = Candidate(version="1.0.0", requirements=(Requirement(need=AnyOf(alternatives=needs)),))
        birds.append(Package(name=f"bird{bird}", candidates=(candidate,)))
    return (*holes, *birds, pkg("all", {"1.0.0": [f"bird{bird}" for bird in range(count)]}))


def test_a_wish_that_is_too_hard_to_decide_costs_no_other_wish() -> None:
    """It is undecided, with what was tried; nothing of it is removed, and the wishes beside it, which share
    its packages, are granted."""
    problem = Problem(
        packages=pigeons(14),
        wishes=(wish("all"), wish("bird0"), wish("hole3")),
        installed=(installed("bird1 1.0.0"),),
        policy=Policy(conflicts_max=200, unneeded="delete"),
    )
    resolution = resolve(problem)
    outcomes = {each.wish.package: each for each in resolution.outcomes}
    assert {name: each.status for name, each in outcomes.items()} == {
        "all": "undecided",
        "bird0": "granted",
        "hole3": "granted",
    }
    explanation = outcomes["all"].explanation
    assert explanation is not None
    assert "you want all, and after 200 conflicts among" in explanation.sentence
    assert outcomes["bird0"].explanation is None


def test_what_nothing_but_a_proof_refuses_is_refused_with_its_reasons() -> None:
    """With enough conflicts the same wish is impossible, and every bird is a part of the reason."""
    resolution = resolve(Problem(packages=pigeons(7), wishes=(wish("all"), wish("hole3"))))
    refused, granted = resolution.outcomes
    assert (refused.status, granted.status) == ("quarantined", "granted")
    assert refused.explanation is not None
    assert [f"bird{n} 1.0.0 needs" in " ".join(refused.explanation.reasons) for n in range(7)] == [True] * 7


@pytest.mark.parametrize(
    "problem",
    [
        Problem(packages=(TREE[0], TREE[0])),
        Problem(installed=(installed("a 1.0.0"), installed("a 2.0.0"))),
        Problem(targets=(Target(), Target())),
        Problem(packages=(Package(name="a", candidates=(Candidate(version="1"), Candidate(version="1"))),)),
        Problem(packages=(Package(name="a", candidates=(), language="klingon"),)),
    ],
)
def test_what_is_given_twice_or_unknown_is_refused(problem: Problem) -> None:
    """A problem with two meanings has no solution."""
    with pytest.raises(ValueError, match=r"twice|no language"):
        resolve(problem)


def test_a_wish_whose_range_cannot_be_read_is_refused_alone() -> None:
    """The others are granted."""
    problem = Problem(packages=TREE, wishes=(Wish(package="pkg", range="no range"), wish("pkg2")))
    resolution = resolve(problem)
    assert [each.status for each in resolution.outcomes] == ["quarantined", "granted"]


def test_a_package_with_thousands_of_impossible_versions_is_refused_in_time() -> None:
    """Each has a need of its own, so all are in the reason; the work is in proportion to versions times
    needs, not to their square."""

    def calls(count: int) -> int:
        needs = {f"1.{number}.0": [f"leaf{number} >=9.0.0"] for number in range(count)}
        leaves = [pkg(f"leaf{number}", {"1.0.0": []}) for number in range(count)]
        problem = Problem(packages=(pkg("big", needs), *leaves), wishes=(wish("big >=1.0.0"),))
        profile = cProfile.Profile()
        resolution = profile.runcall(resolve, problem)
        assert sentence(resolution) == "big 1.0.0 needs leaf0 >=9.0.0, but leaf0 has only 1.0.0"
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(1_200) < 2.5 * calls(600)


def test_a_sentence_names_some_of_many_limits_and_counts_the_others() -> None:
    needs = {f"1.{number}.0": [f"leaf >={number + 2}.0.0"] for number in range(40)}
    problem = Problem(packages=(pkg("big", needs), pkg("leaf", {"1.0.0": []})), wishes=(wish("big >=1.0.0"),))
    words = sentence(resolve(problem))
    assert words.count(" needs leaf ") == 10
    assert words.endswith(", and 30 more like these")
