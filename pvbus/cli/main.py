"""The `pvbus` command: its subcommands, and its exit codes.

Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted; `pvbus plan --check` also has 3, `pvbus apply` 4.
A subcommand's module is loaded on demand, so small ones start fast.
"""

import os
import sys
from importlib import import_module
from io import StringIO
from typing import Any

import click
from click.shell_completion import CompletionItem

from pvbus import __version__
from pvbus.cli.commands import COMMANDS, ELSEWHERE, GROUPS
from pvbus.cli.subcommands import Subcommands, similar
from pvbus.core.errors import FORBIDDEN, NO_MEMORY, PermanentError, PvbusError, UsageError, lacks_memory
from pvbus.core.redaction import without_secrets
from pvbus.runtime.failures import causes
from pvbus.telemetry.guard import begin_process
from pvbus.telemetry.terminal import filter_streams

NO_RIGHT = "; kubectl auth can-i --list shows this user's rights, and --kubeconfig names another user"
"""What to do after a refusal of the API server, whatever the command."""


class Commands(Subcommands):
    """Subcommands by name, in the order of COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under the headings of their groups, from the table alone."""
        width = max(map(len, COMMANDS))
        for heading, group in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in group.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command or an option, from the table alone."""
        begin = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name].summary) for name in begin), *options]

    def meant(self, name: str) -> str:
        """Return a hint: what does it here, else the most similar command, or all commands."""
        if name.lower() in ELSEWHERE:
            return f" {ELSEWHERE[name.lower()]}"
        return similar(name, COMMANDS)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand. Raises ReaderGoneError if the reader of its output has closed the pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as exc:
            raise ReaderGoneError from exc
        except BaseExceptionGroup as group:
            if all(isinstance(exc, BrokenPipeError) for exc in causes(group)):
                raise ReaderGoneError from group
            raise

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].location.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


class ReaderGoneError(Exception):
    """The other end of standard output was closed, as `head` does."""


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="pvbus %(version)s")
def pvbus() -> None:
    """Make and keep fleets of Kubernetes package variants.

    \b
    A fleet of 200 variants on this machine, to look around in:
      pvbus up --example fleet
      export KUBECONFIG=$PWD/.pvbus/kubeconfig
      kubectl get packagevariants

    \b
    Your own manifests (sets, Repositories, inventory objects):
      pvbus validate manifests/
      pvbus plan -f manifests/
      pvbus up manifests/

    \b
    The same over a Kafka, and services as processes of their own:
      pvbus up manifests/ --bus kafka://127.0.0.1:9092 --processes 2
      pvbus topics --create --bus kafka://kafka:9092
      pvbus run render --bus kafka://kafka:9092 --kubeconfig .pvbus/kubeconfig
      pvbus lag --bus kafka://kafka:9092 --watch

    Objects are named as for kubectl: NAME, NAMESPACE/NAME, pvs NAME or pvs/NAME, and -n NAMESPACE.
    Exit codes: 0 done, 1 failed, 2 bad usage or settings, 130 interrupted; `plan --check` also has 3,
    `apply` 4.
    Settings are variables PVBUS_*, or keys of the YAML file that PVBUS_CONFIG names;
    `python -m services.unroll --help` lists them.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit."""
    begin_process()
    filter_streams()
    code = run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _say_no_more()
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    try:
        result: Any = pvbus.main(args=arguments, prog_name="pvbus", standalone_mode=False)
    except click.ClickException as exc:
        exc.show(words := StringIO())
        sys.stderr.write(without_secrets(words.getvalue()))
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except PvbusError as exc:
        return _failed(exc)
    except BaseExceptionGroup as group:
        ours = [exc for exc in map(_in_words, causes(group)) if isinstance(exc, PvbusError)]
        if len(ours) < len(list(causes(group))):
            raise
        return max(_failed(exc) for exc in ours)
    except ReaderGoneError:
        _say_no_more()
        return 0
    except Exception as exc:
        if not lacks_memory(exc):
            raise
        return _failed(_in_words(exc))
    return result if isinstance(result, int) else 0


def _say_no_more() -> None:
    """Discard output that is still buffered: at exit Python would report that it cannot write it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _in_words(error: BaseException) -> BaseException:
    return PermanentError(NO_MEMORY) if lacks_memory(error) else error


def _failed(error: BaseException) -> int:
    is_forbidden = isinstance(error, PermanentError) and error.reason == FORBIDDEN
    print(f"error: {error}{NO_RIGHT if is_forbidden else ''}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1
