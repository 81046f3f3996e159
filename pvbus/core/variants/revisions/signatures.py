"""Signatures: each condition that is True is a statement on certain files, and is void on others.

The package store binds the condition to a digest of the files, in the annotation SIGNATURES of the Kptfile,
which it alone writes. When the content changes, the condition becomes Unknown with the reason INPUTS_CHANGED;
content that returns restores nothing. An update that sets a condition and changes the content signs the new
content. A condition that is False stays: it says that somebody has to do something.

Conditions of the store (`Rendered`, those of validators) and of injection follow from the content by
themselves, and are no signatures.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Self

import msgspec

from pvbus.core.api.kptfile import FILE
from pvbus.core.kernel.keys import CONDITION_ORDER, GATE_STEPS, SIGNATURES, STORE_RECORDS, SURVIVES, TASKS
from pvbus.core.kernel.messages import first_of, part
from pvbus.core.variants.revisions.content import digest_of, kptfile_identity, values_identity
from pvbus.core.variants.revisions.validators import is_validators
from pvbus.core.yaml import editor
from pvbus.core.yaml.rawtext import bytes_of

INPUTS_CHANGED = "InputsChanged"
NOT_REPRODUCIBLE = "NotReproducible"
SIGNATURE_LOOP = "SignatureLoop"
ROUNDS_MAX = 3
"""So often another signer may undo a signature that its signer gives anew, each with other content. Programs
that depend on each other settle in two; more would only write more commits."""
INJECTION_PREFIX = "config.injection."
"""Of the conditions that inject derives from a package's injection points. Source: Porch's name."""
FILES_SHOWN_MAX = 5

Condition = Mapping[str, Any]
Texts = Mapping[str, str]

_WISH: editor.Path = ("metadata", "annotations", SURVIVES)
_NOT_SHOWN: tuple[editor.Path, ...] = (
    ("status",),
    ("info", "readinessGates"),
    *(("metadata", "annotations", key) for key in (*STORE_RECORDS, TASKS, CONDITION_ORDER, GATE_STEPS)),
)
_IGNORED: tuple[editor.Path, ...] = (*_NOT_SHOWN, _WISH)
_json = msgspec.json.Encoder(order="sorted")


class Signature(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a condition was found on.

    content: the digest of the files, without those that it survives
    content: "" of a condition that is void, as another signer changed the content
    by: the user who set the condition, "" if it was copied, or set before there were signatures
    survives: the files and fields whose changes do not void it, as said when it was set
    undone_by, rounds: the signer who has changed the content after it last, and how often in a row
    """

    content: str
    by: str = ""
    survives: tuple[str, ...] = ()
    undone_by: str = ""
    rounds: int = 0

    def undone(self, user: str) -> Self:
        """Return what is remembered when another signer has changed the content."""
        rounds = self.rounds + 1 if self.undone_by == user else 1
        return msgspec.structs.replace(self, content="", undone_by=user, rounds=rounds)


NOT_SIGNED = Signature(content="")


def is_signature(type_: str) -> bool:
    """Return whether conditions of a type are statements of somebody on the content."""
    return type_ != "Rendered" and not is_validators(type_) and not type_.startswith(INJECTION_PREFIX)


def signed(conditions: Iterable[Condition]) -> dict[str, Condition]:
    """Return the conditions that are True and signatures, by type."""
    return {
        str(each["type"]): each
        for each in conditions
        if each.get("status") == "True" and is_signature(str(each["type"]))
    }


def signatures_in(annotations: Mapping[str, str]) -> dict[str, Signature]:
    """Return the signatures by condition type; what cannot be read signs nothing that is stored."""
    try:
        return msgspec.json.decode(annotations.get(SIGNATURES) or "{}", type=dict[str, Signature])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def annotation_of(signatures: Mapping[str, Signature]) -> str:
    """Return the annotation SIGNATURES, "" without any."""
    return _json.encode(signatures).decode() if signatures else ""


# ---------------------------------------------------------------- the digest


def signed_digest(files: Texts, survives: Sequence[str] = ()) -> str:
    """Return 32 hex digits over what a condition is a statement on.

    The package's Kptfile counts without status, readiness gates, their order and the tasks: to ask for more
    changes nothing of what was signed. Every other file counts byte for byte.

    survives: the files and fields that do not count, as `survives_of` returns them
    """
    return digest_of(_parts(files, survives))


def shown_digest(files: Texts) -> str:
    """Return the digest by which a writer names what there is to sign: that of the files, and of what
    signatures would survive. So a wish that somebody adds after the look is other content."""
    return digest_of(_parts(files, (), _NOT_SHOWN))


def changed_files(before: Texts, after: Texts, survives: Sequence[str] = ()) -> list[str]:
    """Return the paths of the files that differ in what counts, sorted."""
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    old, new = (
        _parts({path: files[path] for path in paths if path in files}, survives) for files in (before, after)
    )
    return [path for path in paths if old.get(path) != new.get(path)]


def _parts(
    files: Texts, survives: Sequence[str], ignored: Sequence[editor.Path] = _IGNORED
) -> dict[str, bytes]:
    exempt = [_Exempt.parse(entry) for entry in survives]
    parts = {}
    for path, text in files.items():
        fields = [each.field for each in exempt if each.covers(path)]
        if () in fields:
            continue
        if path == FILE:
            parts[path] = kptfile_identity(text, (*ignored, *fields))
        else:
            parts[path] = values_identity(text, fields) if fields else bytes_of(text)
    return parts


class _Exempt(NamedTuple):
    """An entry of `survives`.

    pattern: of the paths of files; `*` stands for any characters
    field: the path of a field in each of their documents, () for whole files
    """

    pattern: str
    field: editor.Path

    @classmethod
    def parse(cls, entry: str) -> "_Exempt":
        pattern, _, pointer = entry.partition("#")
        steps = pointer.strip("/").split("/") if pointer.strip("/") else []
        return cls(pattern, tuple(step.replace("~1", "/").replace("~0", "~") for step in steps))

    def covers(self, path: str) -> bool:
        return fnmatchcase(path, self.pattern)


def survives_of(annotations: Mapping[str, str], type_: str, files: Iterable[str]) -> tuple[str, ...]:
    """Return the files and fields whose changes do not void a condition of a type.

    An entry is a path, or a path and a JSON pointer (RFC 6901): `docs/*`, `app.yaml#/spec/replicas`.

    files: the paths of the package's files
    Raises: ValueError for an annotation that cannot be read, and for entries that leave nothing to sign.
    """
    text = annotations.get(SURVIVES)
    try:
        entries = msgspec.json.decode(text, type=dict[str, tuple[str, ...]]).get(type_, ()) if text else ()
    except msgspec.MsgspecError as error:
        example = '{"Certified": ["README.md"]}'
        raise ValueError(f"the package's annotation {SURVIVES} is not like {example}: {error}") from None
    whole = [exempt for exempt in map(_Exempt.parse, entries) if not exempt.field]
    others = [path for path in files if path != FILE]
    is_left = any(not any(exempt.covers(path) for exempt in whole) for path in others)
    if any(exempt.covers(FILE) for exempt in whole) or (whole and others and not is_left):
        named = part(", ".join(entries))
        raise ValueError(
            f"the package's annotation {SURVIVES} lets {type_} survive a change of {named}: that is "
            "everything, or the Kptfile; name single files, or fields such as app.yaml#/spec/replicas"
        )
    return entries


# ---------------------------------------------------------------- what an update does to them


class Update(NamedTuple):
    """A draft's content before and after an update.

    before: its files
    asked: the files that the writer asks for, before the pipeline runs
    after: the files that are to be stored
    present: the conditions that the writer saw
    conditions: those that are to be stored
    annotations: of the Kptfile, those before the update with SIGNATURES, else those after it
    user: the writer
    may_sign: whether a condition that the writer sets is a statement of his. The services of pvbus bring
        along what a merge makes of conditions, and state nothing
    is_rendered: whether the files before are an output of the pipeline
    """

    before: Texts
    asked: Texts
    after: Texts
    present: Sequence[Condition]
    conditions: Sequence[Condition]
    annotations: Mapping[str, str]
    user: str = ""
    may_sign: bool = True
    is_rendered: bool = True


class Judged(NamedTuple):
    """What an update leaves of the conditions.

    conditions: those of the update, in order, void ones Unknown
    signatures: by type
    void: the types that lost their signature
    """

    conditions: list[Condition]
    signatures: dict[str, Signature]
    void: tuple[str, ...]


def judge(update: Update) -> Judged:
    """Return what an update leaves of the conditions. Raises: ValueError, as `survives_of`."""
    present, wanted = signed(update.present), signed(update.conditions)
    stored = signatures_in(update.annotations)
    given = {type_ for type_ in wanted if update.may_sign and wanted[type_] != present.get(type_)}
    signatures = _undone(stored, update)
    void: dict[str, Condition] = {}
    for type_, condition in wanted.items():
        former = stored.get(type_) or Signature(content=signed_digest(update.before))
        if type_ in given:
            found, loop = _sign(type_, condition, stored.get(type_, NOT_SIGNED), update)
        elif condition == present.get(type_) and holds(former, update.after):
            found, loop = former, None
        elif given and former.by not in ("", update.user):
            found = former.undone(update.user)
            loop = _void(condition, former, update)
            if found.rounds >= ROUNDS_MAX:
                loop = _looped(condition, found, changed_files(update.before, update.after, former.survives))
        else:
            void[type_] = _void(condition, former, update)
            continue
        signatures[type_] = found
        void |= {type_: loop} if loop is not None else {}
    conditions = [void.get(str(each["type"]), each) for each in update.conditions]
    return Judged(conditions, signatures, tuple(void))


def _undone(stored: Mapping[str, Signature], update: Update) -> dict[str, Signature]:
    """Return what is remembered of signatures that others have undone, and that were not given anew."""
    waiting = {str(each["type"]) for each in update.conditions if each.get("status") == "Unknown"}
    return {type_: each for type_, each in stored.items() if type_ in waiting and not each.content}


def _sign(
    type_: str, condition: Condition, earlier: Signature, update: Update
) -> tuple[Signature, Condition | None]:
    """Return the signature that an update gives, and its condition if it goes on with a loop: its signer
    changes the content again, after another signer has changed it."""
    survives = survives_of(update.annotations, type_, update.after)
    found = Signature(content=signed_digest(update.after, survives), by=update.user, survives=survives)
    changed = changed_files(update.before, update.after, survives)
    if earlier.by != update.user or not changed:
        return found, None
    if earlier.rounds >= ROUNDS_MAX:
        return earlier, _looped(condition, earlier, changed)
    return msgspec.structs.replace(found, undone_by=earlier.undone_by, rounds=earlier.rounds), None


def _looped(condition: Condition, undone: Signature, changed: Sequence[str]) -> Condition:
    """Return a condition that two signers make void in turns: a person has to decide what is right."""
    why = (
        f"{undone.by} and {undone.undone_by} undo each other, {undone.rounds} times now: correct one of "
        "them, and let somebody else set it when the content is right"
    )
    return voided(condition, undone.by, SIGNATURE_LOOP, why, changed)


def holds(signature: Signature, files: Texts) -> bool:
    """Return whether a signature is of these files."""
    return signature.content == signed_digest(files, signature.survives)


def _void(condition: Condition, former: Signature, update: Update) -> Condition:
    changed = changed_files(update.before, update.after, former.survives)
    if changed and update.is_rendered and not changed_files(update.before, update.asked):
        why = (
            "nobody changed the inputs, and the pipeline has written other bytes: correct the function, or "
            f"name its field in {SURVIVES}"
        )
        return voided(condition, former.by, NOT_REPRODUCIBLE, why, changed)
    return voided(condition, former.by, INPUTS_CHANGED, "the content has changed since", changed)


def outdated(condition: Condition) -> Condition:
    """Return a condition of content that has changed, where nobody knows who set it, nor what changed."""
    why = "the content has changed since: whoever set it looks at the draft as it is now, and sets it anew"
    return voided(condition, "", INPUTS_CHANGED, why, ())


def voided(condition: Condition, by: str, reason: str, why: str, changed: Sequence[str]) -> Condition:
    """Return a condition that is no longer True of the content, with its former value and what changed."""
    said = str(condition.get("message") or condition.get("reason") or "")
    former = f"it was True{f' by {by}' if by else ''}{f' ({part(said)})' if said else ''}"
    names = f": {first_of(changed, FILES_SHOWN_MAX)}" if changed else ""
    message = f"{former}; {why}{names}"
    return {"type": condition["type"], "status": "Unknown", "reason": reason, "message": message}
