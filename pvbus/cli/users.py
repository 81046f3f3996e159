"""`pvbus user`: users of the embedded API server, each with a token and roles of his own.

The commands change a file of the data folder, which the server looks at; whether it runs does not matter.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from pvbus.adapters.files import open_plain, reason_of, write_private
from pvbus.cli.datafolder import DEFAULT, DataPaths
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.subcommands import Subcommands
from pvbus.controlplane.apiserver.rbac.builtin import PEOPLE
from pvbus.controlplane.apiserver.rbac.users import (
    Account,
    Grant,
    UserFile,
    check_user,
    digest_of,
    new_token,
)
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.yaml.reader import YamlError, document
from pvbus.core.yaml.writer import dump

_data = click.option("--data", default=DEFAULT, show_default=True, help="Data folder of `pvbus up`.")
_roles = click.option("--role", "roles", multiple=True, type=click.Choice(list(PEOPLE)),
                      help="What the user may do; may be given several times.")  # fmt: skip
_groups = click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group of the user, for "
                       "bindings that you make with kubectl.")  # fmt: skip
_namespaces = click.option("-n", "--namespace", "namespaces", multiple=True, metavar="NAMESPACE",
                           help="Where the roles hold; everywhere if not given.")  # fmt: skip
_kubeconfig = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a kubeconfig of the user instead of printing the token.",
)


@click.group(
    cls=Subcommands,
    short_help="Give other people access, each with a token and rights.",
    epilog="""\b
Examples:
  pvbus user add ann --role approver --kubeconfig ann.kubeconfig
  pvbus user add ci --role editor --namespace team-a --namespace team-b
  pvbus user add bob --group auditors     no role: bind one to the user or the group with kubectl
  pvbus user list
  pvbus user change ann --role viewer     the token stays
  pvbus user token ann                    a new token; the old one is refused from now on
  pvbus user remove ann
""",
)
def user() -> None:
    """Make and remove users of the API server of `pvbus up` and `pvbus apiserver`.

    A viewer reads packages, variants and sets; a proposer also proposes drafts; an editor makes and changes
    packages, variants and sets, and proposes drafts; an approver publishes or rejects what is proposed, and
    deletes what is proposed for deletion; an admin may do everything. None of them but the admin reads
    Secrets. A running server notices a change within a second.
    """


@user.command(short_help="Create a user and print the token.")
@click.argument("name")
@_roles
@_groups
@_namespaces
@_kubeconfig
@_data
def add(
    name: str,
    roles: tuple[str, ...],
    groups: tuple[str, ...],
    namespaces: tuple[str, ...],
    kubeconfig: Path | None,
    data: str,
) -> None:
    """Make a user. The token is shown once: only a digest of it is kept."""
    paths, file = _file(data)
    account = Account(name=name, digest="", groups=groups, grants=_grants(name, roles, groups, namespaces))

    def change(users: dict[str, Account]) -> None:
        if name in users:
            raise UsageError(
                f"there is a user {name} already: `pvbus user change {name}` gives this user other roles, "
                f"`pvbus user token {name}` another token"
            )
        users[name] = account

    _give_token(paths, file, name, kubeconfig, change)


@user.command(short_help="Give a user other roles and groups.")
@click.argument("name")
@_roles
@_groups
@_namespaces
@_data
def change(
    name: str, roles: tuple[str, ...], groups: tuple[str, ...], namespaces: tuple[str, ...], data: str
) -> None:
    """Replace a user's roles and groups by the given ones; without any, the user has none."""
    _, file = _file(data)
    grants = _grants(name, roles, groups, namespaces)

    def replace(users: dict[str, Account]) -> None:
        users[name] = msgspec.structs.replace(_found(users, name), groups=groups, grants=grants)

    file.change(replace)
    click.echo(f"{name}: {_described(grants)}")


@user.command(short_help="Give a user a new token.")
@click.argument("name")
@_kubeconfig
@_data
def token(name: str, kubeconfig: Path | None, data: str) -> None:
    """Make a new token for a user. The old one is refused from now on."""
    paths, file = _file(data)
    _give_token(paths, file, name, kubeconfig, lambda users: None)


@user.command(short_help="Remove a user.")
@click.argument("name")
@_data
def remove(name: str, data: str) -> None:
    """Remove a user. The token is refused from now on; watches that are open go on until they end."""
    _, file = _file(data)

    def drop(users: dict[str, Account]) -> None:
        _found(users, name)
        del users[name]

    file.change(drop)
    click.echo(f"{name} is removed; bindings that name this user, if you made any with kubectl, stay")


@user.command("list", short_help="Show the users.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@_data
def list_(output: str, data: str) -> None:
    """Show the users with their roles and groups, but not the holder of the data folder's kubeconfig."""
    _, file = _file(data)
    users = file.read()
    if output != "text":
        emit([_plain(account) for account in users], output)
    elif not users:
        click.echo(f"there are no users in {file.path}: `pvbus user add NAME` makes one")
    else:
        rows = [(each.name, _described(each.grants), ", ".join(each.groups) or "-") for each in users]
        columns(("NAME", "ROLES", "GROUPS"), rows)


def _file(data: str) -> tuple[DataPaths, UserFile]:
    paths = DataPaths(Path(data))
    if not paths.objects.parent.is_dir():
        raise UsageError(
            f"there is no data folder {paths.root}: name that of `pvbus up` with --data, or start it first"
        )
    return paths, UserFile(paths.objects.parent)


def _grants(
    name: str, roles: tuple[str, ...], groups: tuple[str, ...], namespaces: tuple[str, ...]
) -> tuple[Grant, ...]:
    check_user(name, groups, namespaces)
    if namespaces and not roles:
        raise UsageError("--namespace says where roles hold: give --role, too")
    where = tuple(dict.fromkeys(namespaces))
    return tuple(Grant(role=role, namespaces=where) for role in dict.fromkeys(roles))


def _found(users: dict[str, Account], name: str) -> Account:
    if name not in users:
        known = ", ".join(sorted(users)) or "none"
        raise UsageError(f"there is no user {name}; there are: {known}")
    return users[name]


def _described(grants: tuple[Grant, ...]) -> str:
    if not grants:
        return "no role"
    where = {grant.namespaces for grant in grants}
    shown = ", ".join(grant.role for grant in grants)
    namespaces = where.pop()
    return f"{shown} in {', '.join(namespaces)}" if namespaces else shown


def _plain(account: Account) -> dict[str, Any]:
    roles = [{"role": grant.role, "namespaces": list(grant.namespaces)} for grant in account.grants]
    return {"name": account.name, "roles": roles, "groups": list(account.groups)}


def _give_token(
    paths: DataPaths,
    file: UserFile,
    name: str,
    kubeconfig: Path | None,
    change: Callable[[dict[str, Account]], None],
) -> None:
    """Change the users, and give one of them a new token, in a kubeconfig or on standard output."""
    cluster = _cluster(paths, kubeconfig, name) if kubeconfig is not None else {}
    made, namespace = new_token(), "default"

    def renew(users: dict[str, Account]) -> None:
        nonlocal namespace
        change(users)
        account = users[name] = msgspec.structs.replace(_found(users, name), digest=digest_of(made))
        namespace = next((each for grant in account.grants for each in grant.namespaces), namespace)

    file.change(renew)
    if kubeconfig is None:
        click.echo(made)
        click.echo("this is shown once; `pvbus user token` makes another one", err=True)
        return
    try:
        write_private(kubeconfig.absolute(), dump(_config(name, made, cluster, namespace)).encode())
    except OSError as exc:
        raise PermanentError(
            f"{kubeconfig} cannot be written ({reason_of(exc)}): the user is there, and "
            f"`pvbus user token {name}` makes another token"
        ) from exc
    click.echo(f"export KUBECONFIG={kubeconfig.absolute()}")


def _cluster(paths: DataPaths, target: Path, name: str) -> dict[str, Any]:
    """Return the server for a kubeconfig. Raises UsageError: it was never started, the file is another's."""
    if not paths.kubeconfig.exists():
        raise UsageError(
            f"{paths.kubeconfig} is not there yet: start `pvbus up` once, or leave out --kubeconfig"
        )
    if target.exists() and _users_of(target) != [name]:
        raise UsageError(f"{target} exists, and is no kubeconfig of {name} alone: choose another name")
    with open_plain(paths.kubeconfig) as stream:
        cluster: dict[str, Any] = document(stream.read()).value["clusters"][0]["cluster"]
    return cluster


def _users_of(file: Path) -> list[Any]:
    with open_plain(file) as stream:
        try:
            content = document(stream.read()).value
        except YamlError:
            return []
    users = content.get("users") if isinstance(content, dict) else None
    return [each.get("name") for each in users if isinstance(each, dict)] if isinstance(users, list) else []


def _config(name: str, token: str, cluster: dict[str, Any], namespace: str) -> dict[str, Any]:
    context = {"cluster": "pvbus", "user": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "pvbus", "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "pvbus", "context": context}],
        "current-context": "pvbus",
    }
