"""CEL: what a variant with five expressions costs, with our evaluator and with the oracles of the tests.

    python -m tests.bench.expressions [--variants N]

Prints one JSON document, in CPU time of this process: per evaluator milliseconds to load it, microseconds
for a variant (identity, cutting the inputs, rendering), milliseconds to compile its expressions, how many
compilations there were, and milliseconds until four nested loops over 10,000 elements are refused (ours
only: oracles have other limits). For the oracles also the ratio to ours.
"""

import argparse
import json
import time
from typing import Any

import msgspec

from pvbus.core.api.variants import PackageVariantSetSpec
from pvbus.core.cel import CelEvalError, compilations, compile_expression
from pvbus.core.kernel.records import Root, TargetRow
from pvbus.core.variants.template import TargetInputs, TemplateCache, compile_targets, render_row
from tests.tools.cel_oracles import ORACLES, evaluating_with

TEMPLATE = {
    "downstream": {
        "repoExpr": "target.labels['region'] + '-fleet'",
        "packageExpr": "packageDefault + '-' + target.name",
    },
    "labelExprs": [{"keyExpr": "'tier-' + repository.labels.tier", "valueExpr": "target.labels.region"}],
    "annotationExprs": [
        {"key": "note", "valueExpr": "has(target.annotations.note) ? target.annotations.note : 'none'"}
    ],
}
SPEC = msgspec.convert({"targets": [{"template": TEMPLATE}]}, PackageVariantSetSpec)
UPSTREAM = Root(name="catalog.app.v1", namespace="default", labels={"vendor": "example"})
REPOSITORY = Root(name="eu-fleet", namespace="default", labels={"tier": "gold"})
OURS = "pvbus"  # beside the names of the oracles
LOOPS = "string(L.map(a, L.map(b, L.map(c, L.map(d, d)))).size())".replace("L", "target.labels")


def inputs_of(number: int) -> TargetInputs:
    labels = {"region": "eu", "site": f"site-{number % 200}", "env": "prod"}
    target = Root(name=f"edge-{number:05}", namespace="default", labels=labels)
    return TargetInputs(target.name, "app", UPSTREAM, target, list_target=False)


def measure(name: str, variants: int) -> dict[str, Any]:
    """Measure our evaluator, or an oracle by its name. It must have an answer for all five expressions."""
    if name == OURS:
        return {**_measured(variants), "nestedLoopsRefusedMilliseconds": _refusing()}
    with evaluating_with(ORACLES[name]):
        return _measured(variants)


def _measured(variants: int) -> dict[str, Any]:
    started = time.process_time()
    compile_expression("'loaded'")
    loading = time.process_time() - started
    before = compilations()
    started = time.process_time()
    compiled = compile_targets(SPEC).targets[0]
    compiling = time.process_time() - started
    assert compiled is not None
    cache = TemplateCache()
    started = time.process_time()
    for number in range(variants):
        inputs = inputs_of(number)
        downstream = compiled.identity(inputs, lambda name: REPOSITORY)
        row = TargetRow(
            state="present",
            set_name="fleet",
            set_uid="uid",
            template=SPEC.targets[0].template,
            downstream=downstream,
            repo_default=inputs.repo_default,
            package_default=inputs.package_default,
            roots=compiled.slim_roots(inputs, REPOSITORY),
        )
        assert render_row(row, cache).labels == {"tier-gold": "eu"}
    rendering = time.process_time() - started
    compiled_count = compilations() - before
    return {
        "loadMilliseconds": round(loading * 1e3, 1),
        "microsecondsPerVariant": round(rendering / variants * 1e6, 1),
        "compileMilliseconds": round(compiling * 1e3, 2),
        "compilations": compiled_count,
    }


def _refusing() -> float:
    labels = {f"k{n:05}": "v" for n in range(10_000)}
    started = time.process_time()
    try:
        compile_expression(LOOPS).evaluate({"target": {"labels": labels}})
        raise AssertionError("the loops must be refused")
    except CelEvalError:
        return round((time.process_time() - started) * 1e3, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", type=int, default=10_000)
    options = parser.parse_args()
    found = {name: measure(name, options.variants) for name in (OURS, *ORACLES)}
    for name in ORACLES:
        ratio = found[name]["microsecondsPerVariant"] / found[OURS]["microsecondsPerVariant"]
        found[name]["ratioToOurs"] = round(ratio, 2)
    print(json.dumps({"variants": options.variants, "evaluators": found}, indent=2))


if __name__ == "__main__":
    main()
