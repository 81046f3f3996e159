"""The option that names the versions of platforms."""

import click

from pvbus.core.errors import UsageError

platform_option = click.option(
    "--platform",
    "platforms",
    multiple=True,
    metavar="NAME=VERSION",
    help="A platform's version: crossplane, kubernetes or kapp-controller.",
)


def platforms_of(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the versions by the names of their platforms. Raises UsageError."""
    found = {}
    for text in texts:
        name, sign, version = text.partition("=")
        if not sign or not name or not version:
            raise UsageError(f"--platform {text}: write NAME=VERSION, for example crossplane=2.0.1")
        found[name] = version
    return found
