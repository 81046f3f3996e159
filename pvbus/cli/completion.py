"""`pvbus completion`: prints the script that completes commands, options and names in a shell."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_PVBUS_COMPLETE"
"""The variable in which the script asks pvbus for completions, by click's rule for the name of a program."""


@click.command(
    short_help="Print the completion script of a shell.",
    epilog="""\b
Where to put it, and it counts in the next shell:
  bash   pvbus completion bash > ~/.local/share/bash-completion/completions/pvbus
         with the package bash-completion; without it, in ~/.bashrc: source <(pvbus completion bash)
  zsh    in ~/.zshrc, after compinit: source <(pvbus completion zsh)
  fish   pvbus completion fish > ~/.config/fish/completions/pvbus.fish

Exit codes: 0 printed, 2 bad usage.
""",
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands, options, choices and names of objects."""
    script = get_completion_class(shell)
    assert script is not None, f"click knows {SHELLS}"
    click.echo(script(context.find_root().command, {}, "pvbus", VARIABLE).source(), nl=False)
