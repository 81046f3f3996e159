"""Groups of commands that answer a wrong word with the right one."""

from collections.abc import Iterable

import click

from pvbus.cli.commands import COMMANDS


class Subcommands(click.Group):
    """The commands below one of `pvbus`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-"):
            ctx.fail(f"No such command '{name}'.{self.meant(name)}")
        return super().resolve_command(ctx, args)

    def meant(self, name: str) -> str:
        """Return a hint: the most similar command, or all of them, and a command of `pvbus` of this name."""
        above = f" There is `pvbus {name}`, too." if name in COMMANDS else ""
        return f"{similar(name, self.commands)}{above}"


def similar(name: str, commands: Iterable[str]) -> str:
    """Return a hint with the command that is most similar to a word, or with all commands."""
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), commands, n=1, cutoff=0.6)
    close = close or [command for command in commands if command.startswith(name.lower())]
    return f" Did you mean '{close[0]}'?" if close else f" There are {', '.join(commands)}."
