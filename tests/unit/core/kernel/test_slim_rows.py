"""A row carries of each object what the expressions read: no less, or it renders something else."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import VariantTemplate
from pvbus.core.kernel.records import Root
from pvbus.core.variants.template import CompiledTemplate, TargetInputs

TARGET = Root(name="s1", namespace="ns", labels={"a": "1", "b": "2"}, annotations={"c": "3", "d": "4"})
INPUTS = TargetInputs("r1", "p1", Root(name="up"), TARGET, list_target=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("target.name", Root(name="s1")),
        ("target.labels.a", Root(labels={"a": "1"})),
        ("target.labels['b'] + target.annotations['c']", Root(labels={"b": "2"}, annotations={"c": "3"})),
        ("'a' in target.labels ? 'x' : 'y'", None),
        ("string(size(target.annotations))", Root(annotations={"c": "3", "d": "4"})),
        ("string(size(target))", TARGET),
        ("target.labels.missing", Root()),
    ],
)
def test_a_row_has_what_its_expressions_read(text: str, expected: Root | None) -> None:
    template: Any = {"labelExprs": [{"key": "k", "valueExpr": text}]}
    compiled = CompiledTemplate(msgspec.convert(template, VariantTemplate))
    assert compiled.errors == ()
    slim = compiled.slim_roots(INPUTS, None)["target"]
    if expected is None:  # which key is asked for is known, or all are there
        assert slim.labels.get("a") == "1"
    else:
        assert slim == expected
