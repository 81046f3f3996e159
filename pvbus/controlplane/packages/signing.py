"""Signatures at the package store: the conditions of a draft follow its content, whoever writes it and how.

The rules are in `pvbus.core.variants.revisions.signatures`. The store applies them to each save of a draft,
through a PackageRevision or its resources, after the pipeline has run; and to a draft that somebody pushed
to, when it reads it. A request may name the content that its writer has looked at, in the annotation
SIGNED_CONTENT: for other content it is refused with 422, as a client that gets 409 sends the same again.
"""

from collections.abc import Mapping, Sequence

import msgspec

from pvbus.controlplane.packages import answers, content, layout
from pvbus.controlplane.packages.content import KptfileFacts, facts_of
from pvbus.controlplane.packages.render import Rendering
from pvbus.controlplane.packages.revisions import Revision
from pvbus.core.kernel.keys import SIGNATURES, SIGNED_CONTENT
from pvbus.core.variants.merge import copies
from pvbus.core.variants.revisions import signatures
from pvbus.core.variants.revisions.signatures import Judged, Update
from pvbus.core.yaml import editor

_PATH = ("metadata", "annotations", SIGNATURES)
Texts = Mapping[str, str]


def sign(
    revision: Revision, stored: Texts, asked: Texts, made: Rendering, user: str, *, may_sign: bool
) -> tuple[Rendering, tuple[str, ...]]:
    """Return a draft's next files, in which its conditions follow the content, and the lines for git.

    stored: the draft's files now
    asked: the files that the request asks for
    made: what the pipeline made of them
    user: the user whose request it is
    may_sign: whether a condition that the request sets is a statement of the user
    Raises: StatusError.
    """
    is_rendered = revision.note is None or revision.note.state == "done"
    try:
        return signed(revision.kptfile, stored, asked, made, user, may_sign=may_sign, is_rendered=is_rendered)
    except editor.YamlError:
        return made, ()  # it cannot be read, and has no conditions: a gate on one is not met
    except ValueError as exc:
        raise answers.unusable(str(exc)) from exc


def signed(
    before: KptfileFacts,
    stored: Texts,
    asked: Texts,
    made: Rendering,
    user: str,
    *,
    may_sign: bool = True,
    is_rendered: bool = True,
) -> tuple[Rendering, tuple[str, ...]]:
    """Return what `sign` does, of a package that need not be a revision of a repository.

    before: the facts of the stored Kptfile, as they are shown
    is_rendered: whether the stored files are an output of the pipeline
    Raises: ValueError for what the annotation SURVIVES says; YamlError.
    """
    after = facts_of(made.texts.get(layout.KPTFILE, ""))
    record = before.annotations.get(SIGNATURES, "")
    if not (record or SIGNATURES in after.annotations or signatures.signed(after.conditions)):
        return made, ()
    update = Update(
        before=stored,
        asked=asked,
        after=made.texts,
        present=before.conditions,
        conditions=after.conditions,
        annotations={**after.annotations, SIGNATURES: record},
        user=user,
        may_sign=may_sign,
        is_rendered=is_rendered,
    )
    judged = signatures.judge(update)
    texts = _with_signatures(made.texts, after, judged)
    lines = [f"Signature {type_}: void, as the content has changed" for type_ in judged.void]
    if signatures.signed(before.conditions):
        lines += [
            f"Gate {type_}: removed by {user or 'a service'} from a signed draft"
            for type_ in _removed(before, after)
        ]
    return made._replace(texts=texts), tuple(map(layout.one_line, lines))


def _removed(before: KptfileFacts, after: KptfileFacts) -> list[str]:
    """Return the readiness gates that an update takes away."""
    present = {gate["conditionType"] for gate in after.gates}
    return sorted({gate["conditionType"] for gate in before.gates} - present)


def bind(texts: Texts) -> Texts:
    """Return the first files of a revision, with the conditions that it has kept bound to them."""
    facts = facts_of(texts.get(layout.KPTFILE, ""))
    digest = signatures.signed_digest(texts)
    bound = {type_: signatures.Signature(content=digest) for type_ in signatures.signed(facts.conditions)}
    if not bound:
        return texts
    return _with_signatures(texts, facts, Judged(list(facts.conditions), bound, ()))


def _with_signatures(texts: Texts, facts: KptfileFacts, judged: Judged) -> Texts:
    edits: list[copies.Edit] = []
    if judged.void:
        edits.append(content.with_conditions(judged.conditions, facts.own))
    wanted = signatures.annotation_of(judged.signatures)
    if facts.annotations.get(SIGNATURES, "") != wanted:
        edits.append(_with_record(wanted))
    return copies.edit_kptfile(texts, *edits) if edits else texts


def _with_record(text: str) -> copies.Edit:
    if not text:
        return lambda kptfile: copies.without_annotations(kptfile, (SIGNATURES,))
    return lambda kptfile: editor.assign(kptfile, _PATH, text)


# ------------------------------------------------------------ drafts that somebody edited elsewhere

PUSHED = "somebody has pushed to its branch since"


def judged_edit(facts: KptfileFacts, files: Texts, former: Texts, why: str = PUSHED) -> KptfileFacts:
    """Return the facts of a draft that another program has edited: its conditions follow the content.

    A condition that the store has never seen has no signature: what comes with it is what it is about.

    files: the draft's files now
    former: those of the store's last commit, {} if they are not known
    why: what happened to the files, for the message
    """
    found = signatures.signatures_in(facts.annotations)
    signed = signatures.signed(facts.conditions)
    void = {
        type_: signatures.voided(
            condition,
            found[type_].by,
            signatures.INPUTS_CHANGED,
            why,
            signatures.changed_files(former, files, found[type_].survives) if former else (),
        )
        for type_, condition in signed.items()
        if type_ in found and not signatures.holds(found[type_], files)
    }
    conditions = tuple(dict(void.get(each["type"], each)) for each in facts.conditions)
    return msgspec.structs.replace(facts, conditions=conditions) if void else facts


def current_texts(texts: Texts, revision: Revision) -> Texts:
    """Return the files of a revision with the conditions that the API shows: those of a push may be void."""
    kptfile = texts.get(layout.KPTFILE, "")
    if revision.note is not None or SIGNATURES not in kptfile:
        return texts
    if facts_of(kptfile).conditions == revision.kptfile.conditions:
        return texts
    edit = content.with_conditions(revision.kptfile.conditions, revision.kptfile.own)
    return copies.edit_kptfile(texts, edit)


# ------------------------------------------------------------ the content that a writer names


def require_content(name: str, named: str | None, contents: Sequence[Texts]) -> None:
    """Refuse a request that names another content. Raises: StatusError (422).

    named: the digest that the request names, None if it names none
    contents: what is stored, after the pipeline and before it
    """
    if named is None:
        return
    digests = [signatures.shown_digest(texts) for texts in contents]
    if named not in digests:
        field = f"metadata.annotations[{SIGNED_CONTENT}]"
        said = layout.one_line(str(named))
        problem = f"it names the content {said}, and the package has {digests[0]}: look at it anew"
        raise answers.invalid(name, field, problem)


def without_named_content(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return metadata without the annotation that names the content: it is for one request."""
    annotations = metadata.get("annotations")
    if not isinstance(annotations, Mapping) or SIGNED_CONTENT not in annotations:
        return dict(metadata)
    others = {key: value for key, value in annotations.items() if key != SIGNED_CONTENT}
    retained = {key: value for key, value in metadata.items() if key != "annotations"}
    return {**retained, "annotations": others} if others else retained
