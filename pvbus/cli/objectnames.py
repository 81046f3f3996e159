"""Reads how a command line names an object: one grammar for all commands.

NAME, NAMESPACE/NAME, KIND NAME, KIND/NAME or KIND/NAMESPACE/NAME, and -n NAMESPACE. A kind is what kubectl
takes: singular, plural or short name, in any case, also with its group. A word that may be a kind or a
namespace is a kind. Without a namespace it is that of the kubeconfig's current context, else `default`.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from pvbus.cli.datafolder import DataPaths
from pvbus.core.errors import UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objectrows import POLICY, QUARANTINE, REPOSITORY, REVISION, SET, STOP, VARIANT
from pvbus.core.kernel.packagekinds import CARVEL_INSTALL, CROSSPLANE_INSTALLS, CROSSPLANE_REVISIONS
from pvbus.core.yaml.reader import document
from pvbus.ports.cluster import Kind

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_NAMESPACE = "default"
INSTALL = CARVEL_INSTALL
_CROSSPLANE = (*CROSSPLANE_INSTALLS, *(kind for kind in CROSSPLANE_REVISIONS if kind.kind != REVISION.kind))
"""Without the revisions of Packages: their word is that of Porch's package revisions."""

_WORDS = {
    SET: ("packagevariantset", "packagevariantsets", "pvs"),
    VARIANT: ("packagevariant", "packagevariants", "pv"),
    REVISION: ("packagerevision", "packagerevisions"),
    REPOSITORY: ("repository", "repositories", "repo"),
    POLICY: ("rolloutpolicy", "rolloutpolicies", "rollout"),
    INSTALL: ("packageinstall", "packageinstalls", "pkgi"),
    QUARANTINE: ("quarantine", "quarantines"),
    STOP: ("rolloutstop", "rolloutstops"),
    **{kind: (f"{kind.kind.lower()}s", kind.kind.lower()) for kind in _CROSSPLANE},
}
"""The words of a kind, the last one the shortest."""

NAMED_KINDS = (SET, VARIANT, REVISION, REPOSITORY, POLICY, INSTALL, *_CROSSPLANE)
"""Those that report conditions on the bus."""

_KINDS = {word: kind for kind, words in _WORDS.items() for word in words}

namespace_option = click.option(
    "-n",
    "--namespace",
    help="The namespace of NAME; if neither has one, the kubeconfig's, else default.",
)


class Named(NamedTuple):
    """What a command line names.

    kind: the kind that it says, None if it says none
    key: the object's namespace and name
    rest: the words after the name
    """

    kind: Kind | None
    key: Key
    rest: tuple[str, ...] = ()


class Scope(NamedTuple):
    """Where names without a namespace are.

    namespace: that of -n, None if it is not given
    data: the data folder
    kubeconfig: the kubeconfig that is given, None for that of the data folder
    """

    namespace: str | None
    data: str
    kubeconfig: str | None = None

    def default(self) -> str:
        """Return the namespace of the kubeconfig's current context; `default` if it cannot be read."""
        path = Path(self.kubeconfig) if self.kubeconfig else DataPaths(Path(self.data)).kubeconfig
        try:
            config = document(path.read_text(encoding="utf-8")).value
            contexts = {each["name"]: each["context"] for each in config["contexts"]}
            return str(contexts[config["current-context"]].get("namespace") or DEFAULT_NAMESPACE)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):  # the connection reports it
            return DEFAULT_NAMESPACE


def object_argument(
    metavar: str, kinds: Sequence[Kind], *, required: bool = True
) -> Callable[[Command], Command]:
    """Return the argument whose words `named` reads, and of which a shell completes the name.

    kinds: the kinds that the command takes
    """

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from pvbus.cli.objectcompletion import completions  # only a shell's tab needs a bus for this

        return completions(context.params, parameter.name or "", kinds, incomplete)

    return click.argument("words", nargs=-1, required=required, metavar=metavar, shell_complete=complete)


def named(words: Sequence[str], kinds: Sequence[Kind], scope: Scope, *, rest_max: int | None = 0) -> Named:
    """Return the object that the words name, and the words after it.

    kinds: the kinds that the command takes, first the one that it takes a name without a kind for
    rest_max: the number of words that may follow, None for any
    Raises UsageError.
    """
    kind = kind_of(words[0]) if words else None
    if not words or (kind is not None and len(words) == 1):
        what = f'"{words[0]}" is a kind, and the name is missing' if words else "the name is missing"
        raise UsageError(f"{what}: {examples(kind or kinds[0])}")
    text, rest = (words[1], words[2:]) if kind is not None else (words[0], words[1:])
    parts = text.split("/")
    if kind is None and len(parts) > 1 and kind_of(parts[0]) is not None:
        kind, parts = kind_of(parts[0]), parts[1:]
    if rest_max is not None and len(rest) > rest_max:
        raise UsageError(_too_many(words, kind, kinds))
    if kind is not None and kind not in kinds:
        raise UsageError(f"this command takes no {kind.kind}, but {_list_of(kinds)}")
    if len(parts) > 2 or not all(parts):
        raise UsageError(f'"{text}" names no object: {examples(kind or kinds[0])}')
    if scope.namespace and len(parts) == 2 and parts[0] != scope.namespace:
        raise UsageError(f'"{text}" and -n {scope.namespace} name two namespaces: leave one of them out')
    if kind in _CROSSPLANE:
        if len(parts) == 2:
            raise UsageError(f'"{text}": a {kind.kind} has no namespace: {examples(kind)}')
        return Named(kind, Key("", parts[0]), tuple(rest))
    namespace = parts[0] if len(parts) == 2 else scope.namespace or scope.default()
    return Named(kind, Key(namespace, parts[-1]), tuple(rest))


def kind_of(word: str) -> Kind | None:
    """Return the kind of a word such as pvs, PackageVariantSet or packagevariantsets.config.porch.kpt.dev."""
    head, _, group = word.lower().partition(".")
    kind = _KINDS.get(head)
    return kind if kind is not None and group in ("", kind.group) else None


def examples(kind: Kind) -> str:
    """Return in words how an object of a kind is named."""
    short = _WORDS[kind][-1]
    if kind in _CROSSPLANE:
        return f"give {short}/NAME or {short} NAME"
    return f"give NAMESPACE/NAME, {short}/NAME or {short} NAME, also with -n NAMESPACE"


def typed(kind: Kind, key: Key) -> str:
    """Return the words that name an object whatever the command takes without a kind."""
    return f"{_WORDS[kind][-1]}/{key}"


def _too_many(words: Sequence[str], kind: Kind | None, kinds: Sequence[Kind]) -> str:
    if kind is None:
        return f'"{words[0]}" is no kind: this command takes {_list_of(kinds)}, one at a time'
    return f'"{" ".join(words)}" has more than one name: a command takes one object'


def _list_of(kinds: Iterable[Kind]) -> str:
    return " or ".join(f"a {kind.kind} ({_WORDS[kind][-1]})" for kind in kinds)
