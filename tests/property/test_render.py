"""Laws of expressions and rendering: oracles agree, cut inputs suffice, nothing else leaks."""

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pvbus.core.api.variants import Downstream, VariantTemplate
from pvbus.core.cel import (
    ROOTS,
    CelCompileError,
    CelError,
    compile_expression,
)
from pvbus.core.cel import types as t
from pvbus.core.cel.checker import check
from pvbus.core.kernel.records import Root
from pvbus.core.variants.template import CompiledTemplate, RenderError, TargetInputs, variables_of
from tests.tools.cel_oracles import ORACLES, NoAnswer

KINDS = {name: t.STRING if name in ("repoDefault", "packageDefault") else t.DYN for name in ROOTS}
WARM = [oracle.program(check("'warm'", KINDS)) for oracle in ORACLES.values()]
"""cel-python raises the recursion limit once: before Hypothesis looks."""

keys = st.sampled_from(["region", "env", "n", "a.b/c", "empty", "bad"])
words = st.sampled_from(["", "a", "edge", "42", "é", "👋", "true", "a-b"])
labels = st.dictionaries(keys, words, max_size=4)
roots = st.builds(
    Root,
    name=words,
    namespace=st.just("default"),
    labels=labels,
    annotations=labels,
    repo=words,
    package=words,
)
inputs = st.builds(
    TargetInputs,
    repo_default=words,
    package_default=words,
    upstream=roots,
    target=roots,
    list_target=st.booleans(),
)


CONTAINERS = st.sampled_from(["target.labels", "['a', 'edge']", "target", "target.name"])


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _strings(inner: st.SearchStrategy[str], bools: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("({} ? {} : {})".format, bools, inner, inner),
        st.builds("[{}, {}][{}]".format, inner, inner, st.integers(-1, 2)),
        st.builds("{{'a': {}}}['a']".format, inner),
        st.builds("{{'a': {}}}.a".format, inner),
        st.builds("string(size({}))".format, inner),
        st.builds("['x', 'y'].map(v, v + {})[0]".format, inner),
        st.builds("target.labels[{}]".format, inner),
        st.builds("string({})".format, bools),
        st.builds("dyn({})".format, inner),
    )


def _bools(inner: st.SearchStrategy[str], strings: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    return st.one_of(
        st.builds("({} {} {})".format, strings, operators, strings),
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} in {})".format, strings, CONTAINERS),
        st.builds("{}.startsWith({})".format, strings, strings),
        st.builds("{}.{}(k, k == {} || {})".format, CONTAINERS,
                  st.sampled_from(["all", "exists", "exists_one"]), strings, inner),
    )  # fmt: skip


ROOT_NAMES = st.sampled_from(["target", "upstream", "repository"])
simple_strings = st.one_of(
    words.map(quoted),
    st.sampled_from(["repoDefault", "packageDefault"]),
    st.builds("{}.{}".format, ROOT_NAMES, st.sampled_from(["name", "namespace", "repo", "package", "spec"])),
    st.builds("{}.{}[{}]".format, ROOT_NAMES, st.sampled_from(["labels", "annotations"]), keys.map(quoted)),
    st.builds("{}.labels.region".format, ROOT_NAMES),
    st.just("target.labels"),
)
simple_bools = st.one_of(
    st.sampled_from(["true", "false", "1 / 0 == 1", "target.name"]),
    st.builds("has({}.labels.{})".format, ROOT_NAMES, st.sampled_from(["region", "env"])),
    st.builds("{} in {}.annotations".format, keys.map(quoted), ROOT_NAMES),
)


def _deeper(depth: int) -> tuple[st.SearchStrategy[str], st.SearchStrategy[str]]:
    strings, bools = simple_strings, simple_bools
    for _ in range(depth):
        strings, bools = (
            st.one_of(simple_strings, _strings(strings, bools)),
            st.one_of(simple_bools, _bools(bools, strings)),
        )
    return strings, bools


expressions = _deeper(3)[0]


def outcome(text: str, variables: dict[str, Any]) -> tuple[str, str]:
    try:
        return "result", compile_expression(text).evaluate(variables)
    except CelError as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", ORACLES)
@given(text=expressions, given_inputs=inputs, repository=roots)
def test_oracles_give_what_the_evaluator_gives(
    name: str, text: str, given_inputs: TargetInputs, repository: Root
) -> None:
    """Whatever the expression: a string that an oracle gives is our result; what we refuse has none."""
    variables = variables_of(given_inputs, repository)
    kind, ours = outcome(text, variables)
    if kind == "CelCompileError":
        return
    try:
        value = ORACLES[name].program(check(text, KINDS))(variables)
    except NoAnswer:
        return
    assert (kind, ours) == ("result", value) if isinstance(value, str) else kind == "CelConvertError"


@given(text=expressions, given_inputs=inputs, repository=roots)
def test_cut_inputs_suffice(text: str, given_inputs: TargetInputs, repository: Root) -> None:
    """What an expression gives for the roots cut to its reads, it gives for the whole ones, errors too."""
    exprs = [{"key": "a", "valueExpr": text}]
    template = CompiledTemplate(msgspec.convert({"labelExprs": exprs}, VariantTemplate))
    assume(not template.errors)
    slim = template.slim_roots(given_inputs, repository)
    cut = given_inputs._replace(upstream=slim.get("upstream", Root()), target=slim.get("target", Root()))
    assert _labels(template, cut, slim.get("repository")) == _labels(template, given_inputs, repository)


def _labels(template: CompiledTemplate, given_inputs: TargetInputs, repository: Root | None) -> Any:
    try:
        return template.spec(None, Downstream(), variables_of(given_inputs, repository)).labels
    except RenderError as error:
        return str(error)


@given(text=expressions, given_inputs=inputs, repository=roots, other=roots)
def test_what_is_not_read_does_not_matter(
    text: str, given_inputs: TargetInputs, repository: Root, other: Root
) -> None:
    """A root that the reads do not name can be any object, or none."""
    try:
        program = compile_expression(text)
    except CelCompileError:
        assume(False)
    variables = variables_of(given_inputs, repository)
    foreign = variables_of(given_inputs._replace(target=other, upstream=other), other)
    mixed = {name: (variables if name in program.roots else foreign)[name] for name in variables}
    assert outcome(text, mixed) == outcome(text, variables)
    bare = {name: value for name, value in variables.items() if name in program.roots}
    assert outcome(text, bare) == outcome(text, variables)


@given(
    text=st.text(
        alphabet=st.sampled_from(list("ab'\"\\{}[]().,:?+-*/%<>=!&|0123 \n\tuxrtin🙂é")), max_size=40
    )
)
def test_no_text_breaks_the_front_end(text: str) -> None:
    """Any text either compiles or is refused with an error that begins with `ERROR: `."""
    kind, message = outcome(text, {})
    assert kind != "CelCompileError" or message.startswith("ERROR: <input>:")


@given(static=labels, entries=st.lists(st.tuples(keys, words, st.booleans(), st.booleans()), max_size=6))
def test_an_overlay_is_a_fold_of_assignments(
    static: dict[str, str], entries: list[tuple[str, str, bool, bool]]
) -> None:
    """Expressions or values, keys or key expressions: the result is that of assigning in order."""
    exprs = [
        {
            ("keyExpr" if computed_key else "key"): quoted(key) if computed_key else key,
            ("valueExpr" if computed else "value"): quoted(value) if computed else value,
        }
        for key, value, computed_key, computed in entries
    ]
    template = CompiledTemplate(msgspec.convert({"labels": static, "labelExprs": exprs}, VariantTemplate))
    wanted = static | {key: value for key, value, _, _ in entries}
    assert template.spec(None, Downstream(), {}).labels == wanted
