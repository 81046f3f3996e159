"""Tables of kubectl commands: what they print, how they end, and the state they leave.

`verbs` runs on a custom kind and on a ConfigMap; everything runs with every version of kubectl.
"""

import pytest

from tests.e2e.kubectl.driver import CONFIG_MAP, WIDGET, Case, Kubectl, Subject, values
from tests.e2e.kubectl.kinds import KINDS
from tests.e2e.kubectl.verbs import verbs

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(1800)]  # the first one may have to build kubectl

SUBJECTS = [pytest.param(WIDGET, id="custom"), pytest.param(CONFIG_MAP, id="configmap")]


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("number", range(len(verbs(WIDGET))), ids=[case.name for case in verbs(WIDGET)])
def test_verb(
    kubectl: Kubectl, subject: Subject, number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each command says, ends and leaves behind what it does on any cluster."""
    case = verbs(subject)[number]
    if case.name == "edit":
        script = tmp_path_factory.mktemp("editor") / "edit.sh"
        script.write_text('#!/bin/sh\nsed -i \'s/size: "1"/size: "7"/\' "$1"\n', encoding="utf-8")
        script.chmod(0o755)
        kubectl.environment(KUBE_EDITOR=str(script))
    for step in case.steps:
        kubectl.check(step._replace(stdin=step.stdin.replace("$ns", kubectl.namespace)), subject)
    left = kubectl.get(subject)
    if case.after is None:
        assert left is None
    else:
        wanted = {
            path: [kubectl.namespace if value == "$ns" else value for value in found]
            for path, found in case.after.items()
        }
        assert left is not None
        assert values(left, wanted) == wanted


@pytest.mark.parametrize("case", KINDS, ids=[case.name for case in KINDS])
def test_one_kind(kubectl: Kubectl, case: Case) -> None:
    """What differs between custom and built-in kinds, and what concerns neither."""
    for step in case.steps:
        kubectl.check(step, case.subject)
    if case.after is not None:
        left = kubectl.get(case.subject)
        assert left is not None
        assert values(left, case.after) == case.after
