"""What `pvbus --help` says before anybody knows a command."""

import pytest

from pvbus.cli.main import COMMANDS, run


def test_the_overview_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command has a sentence that is not cut off; exit codes, settings and Kafka are mentioned."""
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    overview = out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in overview] == list(COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") for line in overview), overview
    for words in ("Exit codes: 0 done, 1 failed, 2 bad usage", "PVBUS_CONFIG", "--bus kafka://"):
        assert words in out
