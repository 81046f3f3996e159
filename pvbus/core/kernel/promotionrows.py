"""The rows of promotion: what may be proposed, what may be published, and what release has done about it.

The rows of a rollout itself are in `pvbus.core.kernel.rolloutrows`.
"""

from collections.abc import Mapping
from typing import Literal

from pvbus.core.kernel.codec import Row


class BoundCondition(Row, frozen=True, kw_only=True):
    """What a condition of a revision was found on, as far as promote knows.

    content: digest of the files, without those that it survives
    survives: as of `pvbus.core.variants.revisions.signatures.Signature`
    words: digest of its reason and message
    """

    content: str
    survives: tuple[str, ...] = ()
    words: str = ""


class Verdict(Row, frozen=True, kw_only=True):
    """Promote's decision on one open revision of a variant.

    revision: its name
    row_digest: digest of the ObjectRow that the decision was made on
    reason: a word of a closed set (`pvbus.core.promotion.promote.verdicts`)
    message: the reason in words for people
    order: what release does to a revision that still has this digest; "" for nothing
    content: digest of what a signature of its files covers; "" if none was needed, or the files cannot be
        read
    acknowledged: by name of a PackageSpecializer without a gate on it, the content that it has acknowledged
    gates: its readiness gates
    settles_at: seconds since 1970; not proposed earlier, as it lost a gate while it was signed
    bound: by type, what each condition that is True was found on
    void: the types of the conditions that were found on other content
    source: the upstream revision that its variant followed when it was last Ready with it, as
        `REPOSITORY/PACKAGE@REVISION`; "" if it never was
    """

    revision: str
    row_digest: str
    reason: str
    message: str = ""
    order: Literal["", "propose", "return", "void"] = ""
    content: str = ""
    acknowledged: Mapping[str, str] = {}
    gates: tuple[str, ...] = ()
    settles_at: float = 0
    bound: Mapping[str, BoundCondition] = {}
    void: tuple[str, ...] = ()
    source: str = ""


class PromotionRow(Row, frozen=True, kw_only=True):
    """Promote's decisions on the open revisions of a PackageVariant.

    uid, generation: of the PackageVariant that they were made on; release carries out no order for another
    verdicts: a decision for each open revision
    candidates: by name of a RolloutPolicy, a hash of the last CandidateRow that promote wrote for it
    contents: by row_digest of a revision whose files promote has read, the digest of its content; by name of
        a revision that was a draft again after promote had proposed it, the digest that it proposed, as a
        person may have proposed it with other content since
    """

    uid: str
    generation: int = 0
    verdicts: tuple[Verdict, ...] = ()
    candidates: Mapping[str, str] = {}
    contents: Mapping[str, str] = {}


class Carried(Row, frozen=True, kw_only=True):
    """The outcome of an order of promote.

    revision, row_digest, order: of the order
    outcome: `done`; `refused`: the API server refuses it
    message: the words of the refusal
    """

    revision: str
    row_digest: str
    order: Literal["propose", "return", "void"]
    outcome: Literal["done", "refused"]
    message: str = ""


class Approval(Row, frozen=True, kw_only=True):
    """The outcome of an order of a rollout.

    policy, attempt, order, revision, digest: of the order
    outcome: `done`; `refused`: the API server refuses it; `withdrawn`: the revision was not approved, and by
        this order will not be; `unrestored`: the content cannot be published again
    message: why
    """

    policy: str
    attempt: int
    order: Literal["approve", "withdraw", "restore"]
    revision: str
    digest: str
    outcome: Literal["done", "refused", "withdrawn", "unrestored"]
    message: str = ""


class ReleaseRow(Row, frozen=True, kw_only=True):
    """The last outcome of each order for a PackageVariant.

    uid: of the PackageVariant
    carried: of the orders of its PromotionRow
    approvals: of its ApprovalRows, one for each policy
    """

    uid: str
    carried: tuple[Carried, ...] = ()
    approvals: tuple[Approval, ...] = ()


class SeenCondition(Row, frozen=True, kw_only=True):
    """A condition of a PackageVariant as evidence of its published revision.

    type, status: of the condition
    is_bound: its message names the revision
    words: the condition in a sentence
    digest: of the whole condition
    """

    type: str
    status: str
    is_bound: bool
    words: str
    digest: str


class EvidenceSource(Row, frozen=True, kw_only=True):
    """Where the evidence of a target is.

    commit: of the published revision
    namespace, name: of the object; an empty namespace stands for any
    query: PromQL
    problem: why these are not known, "" if they are
    conditions: the conditions that are evidence
    """

    commit: str = ""
    namespace: str = ""
    name: str = ""
    query: str = ""
    problem: str = ""
    conditions: tuple[SeenCondition, ...] = ()


class CandidateRow(Row, frozen=True, kw_only=True):
    """What a rollout knows of one target: promote's facts of a PackageVariant that a RolloutPolicy selects.

    uid: of the PackageVariant
    winner: the policy that has the target instead; then only the outcome of this policy's last order and the
        published revision are set
    canary, places: its position in the rollout, before its name
    revision: the proposed revision
    digest: `pvbus.core.variants.revisions.content.content_digest` of its files
    is_proposed: nothing speaks against its approval
    reason, message: why it may not be approved; of a canary also why it is not proposed, or is no target
    published, published_digest: the latest published revision, "" for none
    is_good: whether the published one is good, None while nothing says so
    verdict: why it is not good, or what is missing
    refused, withdrawn, unrestored: the last attempt of this policy with that outcome, 0 for none
    failure: the words of the outcome
    upstream: the upstream revision that the variant follows
    is_current: the variant is ready with the published revision, and has no open one
    source, files: the upstream revision that the proposed one is made of, and the digest of its files
    published_source: the upstream revision that the published one is made of
    runs: the Quarantine that covers the published one, "" for none
    unit, part, release, published_release, banned: of a member of the policy's train, as in
        `pvbus.core.kernel.rolloutrows.TargetFacts`
    evidence: what else proves the published one, if the policy asks for that; is_good and verdict are of the
        variant's Ready alone
    is_upstream_held: a Quarantine covers the upstream revision that the variant follows, or it is not known
        that none does
    """

    uid: str
    winner: str = ""
    canary: int = 0
    places: tuple[int, ...] = ()
    revision: str = ""
    digest: str = ""
    is_proposed: bool = False
    reason: str = ""
    message: str = ""
    published: str = ""
    published_digest: str = ""
    is_good: bool | None = None
    verdict: str = ""
    refused: int = 0
    withdrawn: int = 0
    unrestored: int = 0
    failure: str = ""
    upstream: str = ""
    is_current: bool = False
    source: str = ""
    files: str = ""
    published_source: str = ""
    runs: str = ""
    unit: str = ""
    part: int = 0
    release: str = ""
    published_release: str = ""
    banned: tuple[tuple[str, ...], ...] = ()
    evidence: EvidenceSource | None = None
    is_upstream_held: bool = False


class ApprovalRow(Row, frozen=True, kw_only=True):
    """A rollout's order for one target.

    uid: of the PackageVariant
    attempt: the attempt that orders it
    order: `approve`: publish this proposed revision if its content still has this digest; `withdraw`: take
        that back, and confirm that it was or will never be carried out; `restore`: publish the content of
        this earlier revision again, which has this digest; `stranded`: no order, but a note for the variant's
        conditions: the rollback is over, and this revision is still published, as no former one can be;
        `freeze`: an order to promote alone: this revision stays proposed though a newer upstream revision is
        there, and once it is published the newer one is no reason to doubt it
    revision, digest: the revision that the order is about, and the digest of its content
    files: with approve, the digest of the files of the upstream revision that it was made of, "" if they
        could not be read
    combination: with approve, the upstream revisions of the train that it goes with
    is_frozen: as freeze, while an approval is ordered
    replaces: with restore, the revision of the attempt, over which alone the former one goes; "" for any, in
        rows of before there was one
    mates: with approve, the revisions that are published in one push with this one, or not at all; none if it
        goes alone
    """

    uid: str
    attempt: int
    order: Literal["approve", "withdraw", "restore", "stranded", "freeze"]
    revision: str
    digest: str
    files: str = ""
    combination: tuple[str, ...] = ()
    is_frozen: bool = False
    replaces: str = ""
    mates: tuple[str, ...] = ()

    @property
    def keeps_proposed(self) -> bool:
        """Whether the revision stays proposed though its variant follows a newer upstream revision."""
        return self.order == "freeze" or self.is_frozen
