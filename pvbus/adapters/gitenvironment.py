"""The environment in which git runs for us: what a repository or an address holds starts no program.

A repository of this machine may have hooks and settings that name programs, and an address may name a helper.
Our commands run none of them, ask for no password, and follow no submodule. Neither a checkout nor a filter
(such as that of LFS) is ever wanted: a pointer to a large file is read as the text that it is.

A repository that is pushed to is the exception, by git's own design: its owner's hooks judge the push.
"""

import os
from collections.abc import Mapping

PROTOCOLS = ("file", "http", "https", "ssh")
"""No helper programs, such as `ext::sh -c`."""

_SETTINGS = {
    "core.alternateRefsCommand": "",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "credential.interactive": "false",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",  # no surprise pauses under load
    "maintenance.auto": "false",
    "submodule.recurse": "false",
}


def git_environment(settings: Mapping[str, str], protocols: tuple[str, ...] = PROTOCOLS) -> dict[str, str]:
    """Return the environment of a git command: ours without git's own variables, and with these settings.

    Settings stand in the environment and not on the command line, where every user could read a password.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    everything = {**_SETTINGS, **settings}
    environment["GIT_CONFIG_COUNT"] = str(len(everything))
    for number, (key, value) in enumerate(everything.items()):
        environment[f"GIT_CONFIG_KEY_{number}"] = key
        environment[f"GIT_CONFIG_VALUE_{number}"] = value
    return environment | {
        "GIT_ALLOW_PROTOCOL": ":".join(protocols),
        "GIT_ASKPASS": "true",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
        "SSH_ASKPASS_REQUIRE": "never",
    }
