"""Says what a commit of a draft changed, from the files before and after it.

The subject of a commit and the lines below it come from the files alone: who writes need not say it, and
cannot say it wrong. Each line begins with a word of ours. Names from files may be any text, so they are cut
and have no line breaks: no name makes a line of its own, or one that a program reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.core.kernel.messages import first_of, part
from pvbus.core.variants.inject.mutations import injected_from
from pvbus.core.variants.inject.mutations.injection import INJECTED
from pvbus.core.variants.inject.mutations.pipeline import PREFIX
from pvbus.core.variants.merge.copies import CONTEXT_FILE, is_yaml
from pvbus.core.variants.merge.kptfile import FILE as KPTFILE
from pvbus.core.variants.revisions import validators
from pvbus.core.yaml import editor

SUBJECT_CHARACTERS_MAX = 72
"""Of the first line: git's convention, and what `git log --oneline` shows in a terminal."""

EDITOR_CHARACTERS_MAX = 40
"""Of a user's name in the subject: an e-mail address fits, and the change has the rest."""

NAME_CHARACTERS_MAX = 80
NAMES_MAX = 5
LINES_MAX = 20

INJECTED_FILES_MAX = 50
"""Changed files that are read for injected objects; reading costs 1 ms for 1,000 characters."""

COMMIT_CHARACTERS = 12
NOT_CHANGED = "Rendering package"
"""The subject of a commit without a change of files: Porch's title."""

_CONSEQUENCES = ("Rendered", "config.injection.", validators.PREFIX)
"""Prefixes of the conditions that follow from other changes."""

Texts = Mapping[str, str]
_PARTS = (
    ("readiness gates", ("info", "readinessGates")),
    ("labels", ("metadata", "labels")),
    ("annotations", ("metadata", "annotations")),
)


class Description(NamedTuple):
    """The subject of a commit, and the lines on its changes."""

    subject: str
    lines: tuple[str, ...]


def describe(changed: Sequence[str], before: Texts, after: Texts, editor_name: str) -> Description:
    """Describe a commit.

    changed: the paths of its files, sorted
    before, after: path -> text of these files before and after it; a link has no text
    editor_name: the name of the user who wrote it, "" for a service of pvbus
    """
    changes = list(_changes(changed, before, after))
    files = first_of([_name(path) for path in changed], NAMES_MAX) or "no file"
    lines = [_capital(line) for line in changes[:LINES_MAX]]
    if len(changes) > LINES_MAX:
        lines.append(f"And {len(changes) - LINES_MAX} more changes")
    lines += [*_commits(_kptfile(before), _kptfile(after)), f"Change of {files}"]
    by = (f"Edit by {_name(editor_name)}",) if editor_name else ()
    return Description(_subject(changes, changed, editor_name), (*lines, *by))


def _subject(changes: Sequence[str], changed: Sequence[str], editor_name: str) -> str:
    names = [_name(path) for path in sorted(changed, key=lambda path: (path == KPTFILE, path))]
    what = changes or ([_in_few_words(names)] if names else [])
    if not what:
        return NOT_CHANGED
    who = f"Edit by {part(_name(editor_name), EDITOR_CHARACTERS_MAX)}: " if editor_name else ""
    if not editor_name and not changes:
        who = "Render "
    text = who + what[0]
    for number, change in enumerate(what[1:], 1):
        longer = f"{text}; {change}"
        more = len(what) - number
        if len(longer) + (len("; +99") if more > 1 else 0) > SUBJECT_CHARACTERS_MAX:
            text = f"{part(text, SUBJECT_CHARACTERS_MAX - len(f'; +{more}'))}; +{more}"
            break
        text = longer
    return part(_capital(text), SUBJECT_CHARACTERS_MAX)


def _in_few_words(names: Sequence[str]) -> str:
    more = len(names) - 1
    return f"{names[0]} and {more} more file{'s' if more > 1 else ''}" if more else names[0]


def _changes(changed: Sequence[str], before: Texts, after: Texts) -> Iterator[str]:
    """Yield what changed in words, the most important first."""
    old, new = _kptfile(before), _kptfile(after)
    is_readable = bool(old) and bool(new)
    if is_readable:
        yield from _upgrade(_lock(old), _lock(new))
    yield from _injections(changed, before, after)
    if is_readable:
        yield from _functions(old, new)
    yield from _context(before.get(CONTEXT_FILE, ""), after.get(CONTEXT_FILE, ""))
    if is_readable:
        yield from _conditions(old, new)
        yield from (words for words, path in _PARTS if editor.get(old, path) != editor.get(new, path))


def _kptfile(texts: Texts) -> Any:
    """Return the value of the Kptfile; None if it is not there or cannot be read."""
    return next(iter(_values(texts.get(KPTFILE, ""))), None)


class _Lock(NamedTuple):
    """The upstream that a package is made of.

    version: the last part of the ref
    commit: the first letters of the commit
    """

    repo: str
    folder: str
    version: str
    commit: str


def _lock(kptfile: Any) -> _Lock:
    git = editor.get(kptfile, ("upstreamLock", "git"))
    git = git if isinstance(git, dict) else {}
    repo, folder, ref, commit = (_name(git.get(key) or "") for key in ("repo", "directory", "ref", "commit"))
    return _Lock(repo, folder.strip("/"), ref.rpartition("/")[2], commit[:COMMIT_CHARACTERS])


def _upgrade(old: _Lock, new: _Lock) -> Iterator[str]:
    """Yield the upgrade, or the change of the package that is followed."""
    if old == new:
        return
    if not new.repo:
        yield "upstream removed"
    elif (old.repo, old.folder) != (new.repo, new.folder):
        before = f" from {_package_of(old)}" if old.repo else ""
        yield f"upstream{before} to {_package_of(new)}"
    elif old.version != new.version:
        yield f"upgrade from {old.version} to {new.version}"
    else:
        yield f"upgrade within {new.version}"


def _commits(old_kptfile: Any, new_kptfile: Any) -> tuple[str, ...]:
    old, new = _lock(old_kptfile), _lock(new_kptfile)
    if old == new or not new.commit or new_kptfile is None:
        return ()
    return (f"Upstream commit {new.commit}, before {old.commit or 'none'}",)


def _package_of(lock: _Lock) -> str:
    return f"{lock.folder or lock.repo} {lock.version}".strip()


def _injections(changed: Sequence[str], before: Texts, after: Texts) -> Iterator[str]:
    """Yield the injected objects whose content in the package changed."""
    marked = [path for path in changed if is_yaml(path) and INJECTED in after.get(path, "")]
    for path in marked[:INJECTED_FILES_MAX]:
        old = _values(before.get(path, ""))
        for value in _values(after[path]):
            source = injected_from(value) if isinstance(value, dict) else None
            if source is not None and not any(_has_same_content(value, each) for each in old):
                yield f"injection of {_name(value.get('kind') or '')} {_name(source)} into {_name(path)}"


def _has_same_content(one: Any, other: Any) -> bool:
    fields = ("kind", "spec", "data")
    return (
        isinstance(other, dict)
        and injected_from(one) == injected_from(other)
        and all(one.get(field) == other.get(field) for field in fields)
    )


def _functions(old: Any, new: Any) -> Iterator[str]:
    for field, word in (("mutators", "function"), ("validators", "validator")):
        olds, news = (_entries(kptfile, ("pipeline", field)) for kptfile in (old, new))
        for name in news:
            if name not in olds:
                yield f"{word} {name} added"
            elif olds[name] != news[name]:
                yield f"{word} {name}: {_settings(olds[name], news[name])}"
        yield from (f"{word} {name} removed" for name in olds if name not in news)
        if list(olds) != list(news) and olds.keys() == news.keys():
            yield f"order of {word}s"


def _entries(kptfile: Any, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the functions of a list by a name for people, which says nothing of the variant."""
    value = editor.get(kptfile, path)
    entries: dict[str, Any] = {}
    for entry in value if isinstance(value, list) else []:
        if not isinstance(entry, dict):
            continue
        name = base = _function_name(entry)
        number = 2
        while name in entries:
            name, number = f"{base} ({number})", number + 1
        entries[name] = entry
    return entries


def _function_name(entry: Mapping[str, Any]) -> str:
    name = str(entry.get("name") or "")
    if name.startswith(f"{PREFIX}."):
        name = name.split(".")[-2]
    image = str(entry.get("image") or entry.get("exec") or "")
    return _name(name or image.rpartition("/")[2].partition("@")[0].partition(":")[0] or "without name")


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return what is different between two versions of a function: names, as a value may be a secret."""
    different = [key for key in sorted({*map(str, old), *map(str, new)}) if old.get(key) != new.get(key)]
    keys = _different_keys(old.get("configMap"), new.get("configMap"))
    others = [
        key for key in different if key not in ("configMap", "name") or (key == "configMap" and not keys)
    ]
    return first_of([*keys, *map(_name, others)], NAMES_MAX) or "name"


def _different_keys(old: Any, new: Any) -> list[str]:
    before, after = (value if isinstance(value, dict) else {} for value in (old, new))
    return sorted({_name(key) for key in {*before, *after} if before.get(key) != after.get(key)})


def _context(old: str, new: str) -> Iterator[str]:
    if old != new and (keys := _different_keys(_context_data(old), _context_data(new))):
        yield f"package context {first_of(keys, NAMES_MAX)}"


def _context_data(text: str) -> Any:
    documents = _values(text)
    return editor.get(documents[0], ("data",)) if documents else None


def _conditions(old: Any, new: Any) -> Iterator[str]:
    olds, news = map(_condition_states, (old, new))
    changed = [f"{type_} {state}" for type_, state in news.items() if olds.get(type_) != state]
    changed += [f"{type_} removed" for type_ in olds if type_ not in news]
    if changed:
        yield f"condition{'s' if len(changed) > 1 else ''} {first_of(changed, NAMES_MAX)}"


def _condition_states(kptfile: Any) -> dict[str, str]:
    value = editor.get(kptfile, ("status", "conditions"))
    conditions = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    types = ((str(each.get("type") or ""), each) for each in conditions)
    return {
        _name(type_): _name(each.get("status") or "")
        for type_, each in types
        if not type_.startswith(_CONSEQUENCES)
    }


def _values(text: str) -> list[Any]:
    """Return the documents of a file; none if it cannot be read: its change is in the list of files."""
    try:
        return editor.values(text)
    except editor.YamlError:
        return []


def _name(value: object) -> str:
    """Return a name of a file as printable words of limited length."""
    head = str(value)[: NAME_CHARACTERS_MAX + 1]
    return part("".join(char if char.isprintable() else "?" for char in head), NAME_CHARACTERS_MAX)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
