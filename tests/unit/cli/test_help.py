"""What `pvbus --help` says before anybody knows a command."""

import subprocess
import sys

import click
import pytest

from pvbus.cli.commands import COMMANDS, GROUPS
from pvbus.cli.main import pvbus, run
from tests.e2e.cli.command import environment


def test_the_overview_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command stands once, under its heading, in a line; exit codes and settings are mentioned."""
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for heading, group in GROUPS.items():
        section = out.partition(f"\n{heading}:\n")[2].partition("\n\n")[0].splitlines()
        assert [tuple(line.split(maxsplit=1)) for line in section] == [
            (name, entry.summary) for name, entry in group.items()
        ]
    assert sum(len(group) for group in GROUPS.values()) == len(COMMANDS)
    for words in ("Exit codes: 0 done, 1 failed, 2 bad usage", "PVBUS_CONFIG", "--bus kafka://"):
        assert words in out


def test_the_overview_says_what_the_commands_say() -> None:
    """The table's summaries are the short helps, which are whole sentences."""
    context = click.Context(pvbus)
    commands = {name: pvbus.get_command(context, name) for name in COMMANDS}
    helps = {name: command and command.get_short_help_str(1000) for name, command in commands.items()}
    assert helps == {name: entry.summary for name, entry in COMMANDS.items()}
    assert all(text and text.endswith(".") for text in helps.values())


def test_the_overview_imports_no_command() -> None:
    """The first command of every newcomer is answered at once."""
    modules = {entry.location.partition(":")[0] for entry in COMMANDS.values()}
    code = (
        "import sys\nfrom pvbus.cli.main import run\nrun(['--help'])\n"
        f"print(*sys.modules.keys() & {modules!r}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == []
