"""The group `pvbus packages`."""

import click

from pvbus.cli.packages.compare import compare
from pvbus.cli.packages.delete import delete
from pvbus.cli.packages.pull import pull
from pvbus.cli.packages.tree import tree
from pvbus.cli.subcommands import Subcommands


@click.group(
    cls=Subcommands,
    short_help="Show, read and delete packages that depend on each other.",
    epilog="""\b
Examples:
  pvbus packages tree demo/pkg-demo
  pvbus packages compare --kubeconfig ~/.kube/config
  pvbus packages pull registry.example.org/team/network:v1.2.0
  pvbus packages delete demo/pkg-demo --dependencies
""",
)
def packages() -> None:
    """Show what packages need, read them, and delete them with what belongs to them."""


for _each in (tree, compare, pull, delete):
    packages.add_command(_each)
