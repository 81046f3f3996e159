"""Writes plain values as YAML that people read and that kubectl reads back unchanged."""

from collections.abc import Iterable
from typing import Any

import yaml

from pvbus.core.yaml.scalars import has_other_value
from pvbus.telemetry.terminal import printable

_WIDTH = 110


def yaml_text(document: Any) -> str:
    """Return a plain value as a YAML document."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)


def yaml_stream(documents: Iterable[Any]) -> str:
    """Return plain values as one stream of YAML documents, which `kubectl apply -f -` takes."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH, explicit_start=True
    )


class _Dumper(yaml.SafeDumper):
    """Writes shared values in full, without aliases, so that people need not look them up."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quote a text that kubectl would not read back unchanged: one like a number, or unprintable."""
    style = '"' if printable(text) != text else "'" if has_other_value(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
