"""CEL: what a variant with five expressions costs, engines and correction layer side by side.

    python -m tests.bench.expressions [--variants N]

Prints one JSON document, in CPU time of this process: per engine milliseconds to load it, microseconds
for a variant (identity, cutting the inputs, rendering), milliseconds to compile its expressions,
how many compilations there were, and milliseconds until four nested loops over 10,000 elements are
refused.
"""

import argparse
import json
import time
from typing import Any

import msgspec

from pvbus.core.api.variants import PackageVariantSetSpec
from pvbus.core.cel import (
    CelEvalError,
    Engine,
    available_engines,
    compilations,
    compile_expression,
    engine_named,
)
from pvbus.core.cel.corrections import corrected
from pvbus.core.records import Root, TargetRow
from pvbus.core.render.template import TargetInputs, TemplateCache, compile_targets, render_row

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
LOOPS = "string(L.map(a, L.map(b, L.map(c, L.map(d, d)))).size())".replace("L", "target.labels")


def inputs_of(number: int) -> TargetInputs:
    labels = {"region": "eu", "site": f"site-{number % 200}", "env": "prod"}
    target = Root(name=f"edge-{number:05}", namespace="default", labels=labels)
    return TargetInputs(target.name, "app", UPSTREAM, target, list_target=False)


class CorrectionLayer:
    """No engine, but what both fall back on."""

    name = "corrections alone"
    program = staticmethod(corrected)


def measure(name: str, variants: int) -> dict[str, Any]:
    """Measure an engine, or the correction layer by its name."""
    started = time.process_time()
    engine: Engine = CorrectionLayer() if name == CorrectionLayer.name else engine_named(name)
    compile_expression("'loaded'", engine=engine)
    loading = time.process_time() - started
    before = compilations()
    started = time.process_time()
    compiled = compile_targets(SPEC, engine).targets[0]
    compiling = time.process_time() - started
    assert compiled is not None
    cache = TemplateCache(engine)
    started = time.process_time()
    for number in range(variants):
        inputs = inputs_of(number)
        place = compiled.identity(inputs, lambda name: REPOSITORY)
        row = TargetRow(
            state="present",
            set_name="fleet",
            set_uid="uid",
            template=SPEC.targets[0].template,
            downstream=place,
            repo_default=inputs.repo_default,
            package_default=inputs.package_default,
            roots=compiled.slim_roots(inputs, REPOSITORY),
        )
        assert render_row(row, cache).labels == {"tier-gold": "eu"}
    rendering = time.process_time() - started
    compiled_count = compilations() - before
    labels = {f"k{n:05}": "v" for n in range(10_000)}
    started = time.process_time()
    try:
        compile_expression(LOOPS, engine=engine).evaluate({"target": {"labels": labels}})
        raise AssertionError("the loops must be refused")
    except CelEvalError:
        refusing = time.process_time() - started
    return {
        "loadMilliseconds": round(loading * 1e3, 1),
        "microsecondsPerVariant": round(rendering / variants * 1e6, 1),
        "compileMilliseconds": round(compiling * 1e3, 2),
        "compilations": compiled_count,
        "nestedLoopsRefusedMilliseconds": round(refusing * 1e3, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", type=int, default=10_000)
    options = parser.parse_args()
    names = (*available_engines(), CorrectionLayer.name)
    engines = {name: measure(name, options.variants) for name in names}
    print(json.dumps({"variants": options.variants, "engines": engines}, indent=2))


if __name__ == "__main__":
    main()
