"""Where pvbus differs from what Porch's tests of v1.5.8 expect, and why.

An entry says what differs and what pvbus shows instead. A difference without an entry fails, and so does an
entry whose command or test no longer differs.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    """fields: of `code`, `stdout`, `stderr`. shows: text of pvbus that Porch's test does not expect."""

    fields: frozenset[str]
    shows: str
    reason: str


class Unmet(NamedTuple):
    """A test that does not pass. outcome: FAIL or SKIP. shows: text of its output."""

    outcome: str
    shows: str
    reason: str


_CONDITION = Difference(
    frozenset({"stdout"}),
    "RenderSuccess",
    "The Kptfile has the condition Rendered, which kpt writes from beta.62 on; this Porch has beta.61.",
)
_COLUMNS = Difference(
    frozenset({"stdout"}),
    "AGE",
    "The definition of Repository has the columns Branch and Age of a later Porch.",
)
_STORED = Difference(
    frozenset({"code", "stdout", "stderr"}),
    "Package is updated, but failed to render",
    "A package whose pipeline fails is stored with Rendered=False, without an annotation on the draft.",
)
COMMANDS: dict[str, dict[int, Difference]] = {
    "repo-register": {3: _COLUMNS},
    "rpkg-clone": {6: _CONDITION, 7: _CONDITION},
    "rpkg-copy": {5: _CONDITION},
    "rpkg-get": {},
    "rpkg-init": {3: _CONDITION},
    "rpkg-init-deploy": {3: _CONDITION, 4: _COLUMNS},
    "rpkg-lifecycle": {
        12: Difference(
            frozenset({"stderr"}),
            "can be deleted only after its deletion was proposed",
            "The package store refuses it itself (403), and no admission webhook, which Porch's text names.",
        )
    },
    "rpkg-nested-package": {},
    "rpkg-push": {
        2: _CONDITION,
        3: Difference(
            frozenset({"stderr"}),
            "is invalid: metadata.resourceVersion",
            "422 in place of 500: an invalid object.",
        ),
        7: _CONDITION,
        8: Difference(
            frozenset({"stderr"}),
            "Error: Operation cannot be fulfilled",
            "409 in place of 500 with the text of a conflict.",
        ),
        11: _STORED,
    },
    "rpkg-push-on-render-failure": {18: _STORED},
    "rpkg-unready": {},
    "rpkg-upgrade": {},
}
"""By case and number of the command, from 0."""

_NO_PODS = Unmet(
    "SKIP", "local mode", "Porch's test needs pods, in which its functions run, and skips itself."
)
_PARALLEL = Unmet("SKIP", "local test mode", _NO_PODS.reason)
_MODIFIED = Unmet(
    "FAIL",
    "the object has been modified",
    "One request wins and the other gets 409 with kube-apiserver's text; the test wants Porch's text.",
)
_SECRET = Unmet(
    "FAIL",
    "a Secret is used by https or ssh only",
    "A clone by an address sends no Secret over http, which the git server of Porch's tests speaks.",
)
API_TESTS: dict[str, Unmet] = {
    "TestBuiltinFunctionEvaluator": _SECRET,
    "TestCloneLeadingSlash": _SECRET,
    "TestConcurrentDeletes": Unmet(
        "FAIL", "not found", "One request deletes, the others get 404; the test wants 409 with Porch's text."
    ),
    "TestConcurrentPackageUpdates": Unmet(
        "FAIL",
        "results: [<nil> <nil>]",
        "Both requests succeed, as neither changes anything: the tasks of a draft are history.",
    ),
    "TestConcurrentProposeApprove": _MODIFIED,
    "TestConcurrentProposeDeletes": _MODIFIED,
    "TestExecFunctionEvaluator": _SECRET,
    "TestFailedPodEvictionAndRecovery": _NO_PODS,
    "TestGitRepository": _SECRET,
    "TestMetricsEndpoint": _SECRET,
    "TestPackageRevisionMetadata": Unmet(
        "FAIL",
        "pvbus.dev/edited-by",
        "An annotation of an open revision names the people who wrote it; the test wants its own ones only.",
    ),
    "TestPodEvaluator": _NO_PODS,
    "TestPodEvaluatorParallelExecution": _PARALLEL,
    "TestPodEvaluatorSequentialParallel": _NO_PODS,
    "TestPodEvaluatorWithFailure": _NO_PODS,
    "TestPodFunctionEvaluatorWithDistrolessImage": _NO_PODS,
    "TestRenderFailureNoPush": _NO_PODS,
    "TestRenderFailureWithPushAnnotation": _NO_PODS,
    "TestRenderFailureWithSaveAndPushAnnotations": _NO_PODS,
}
"""All other tests pass, but for those of `RACES`."""

RACES: dict[str, Unmet] = {
    "TestConcurrentResourceUpdates": Unmet(
        "FAIL",
        "results: [<nil> <nil>]",
        "Both requests succeed if one has ended before the other comes, as neither changes anything.",
    ),
}
"""Tests that pass if two requests overlap."""
