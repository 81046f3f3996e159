"""The names of metrics in PromQL, without its functions, labels, values and durations."""

import re

_NAME = re.compile(r"\bpvbus_[a-zA-Z0-9_:]+")


def metric_names(expression: str) -> set[str]:
    """Return the metrics of pvbus that an expression names; other series are none of ours.

    Raises ValueError for a series with another prefix: nothing compares it with anything.
    """
    without_texts = re.sub(r'"[^"]*"', "", expression)
    selected = set(re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*[{\[]", without_texts))
    foreign = {name for name in selected if not name.startswith("pvbus_")}
    if foreign:
        raise ValueError(f"not of pvbus: {', '.join(sorted(foreign))}")
    return set(_NAME.findall(without_texts))
