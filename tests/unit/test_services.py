"""`python -m services.<name>` with arguments: it has none but the question what it takes."""

from importlib import import_module
from pathlib import Path

import pytest

from pvbus.runtime.process.settings import SERVICE_CONFIGS


@pytest.mark.parametrize("name", SERVICE_CONFIGS)
def test_help_lists_the_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every variable with its default; nothing is started, and no bus is made."""
    monkeypatch.chdir(tmp_path)
    assert import_module(f"services.{name}.__main__").main(["--help"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["PVBUS_BUS", "sqlite:.pvbus/bus.db"] in lines
    assert ["PVBUS_KAFKA_TLS", "false"] in lines
    assert (["PVBUS_REMOVALS_MAX", "5"] in lines) == (name == "unroll")
    assert list(tmp_path.iterdir()) == []


def test_other_arguments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2: whoever gives --bus here would otherwise have a service on another bus."""
    monkeypatch.chdir(tmp_path)
    assert import_module("services.render.__main__").main(["--bus", "kafka://a:9092"]) == 2
    assert "unexpected argument '--bus': settings are environment variables" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
