"""Descriptions and limits of the API types of `pvbus.core.api.rollouts`, `quarantines` and `stops` beside it.

`DESCRIPTIONS`, `SHAPES` and `TYPE_SHAPES` have the forms of `pvbus.core.api.descriptions` and
`pvbus.core.api.constraints`.
"""

from collections.abc import Mapping
from typing import Any

from pvbus.core.api import quarantines as q
from pvbus.core.api import rollouts as m
from pvbus.core.api import stops as s

_DURATION = "A duration such as `90s` or `1h30m`."

DESCRIPTIONS: Mapping[type, Mapping[str, str]] = {
    m.RevisionsSelector: {
        "": "Package revisions of the policy's namespace. One of the fields must be given.",
        "all": "Whether every revision of the namespace is meant. No other field is given then.",
        "set": "Name of the PackageVariantSet whose variants' revisions are meant.",
        "selector": "Labels that a revision must have; those of its PackageVariant count, too.",
        "repositories": "Names of the Repositories that a revision may be in. None means any.",
    },
    m.LabelOrder: {
        "": "A label, and its values in the order of the rollout.",
        "label": "Key of the label.",
        "values": "Values, the first to be approved first. Other values, and revisions without the label, "
        "come after them.",
    },
    m.ObjectCheck: {
        "": "An expression over one object of the cluster.",
        "api_version": "Group and version of the object.",
        "kind": "Kind of the object.",
        "namespace": "Namespace of the object. The default is that of the policy.",
        "name": "Name of the object.",
        "expression": "CEL expression over the variable `object` that gives true or false. The check passes "
        "while it gives true.",
    },
    m.QueryCheck: {
        "": "A Prometheus query whose value must stay within limits.",
        "expression": "PromQL expression with a single value.",
        "window": f"How long the value must have been within the limits. {_DURATION} The default is `5m`.",
        "min": "Least value that passes.",
        "max": "Greatest value that passes.",
    },
    m.PersonCheck: {
        "": "A question that a person answers.",
        "question": "What the person decides on.",
    },
    m.Check: {
        "": "One condition for the next wave. Exactly one of object, query and person is given.",
        "name": "Name of the check, which messages use. Names are unique within a wave.",
        "object": "Checks an object of the cluster. It waits while the expression is not true.",
        "query": "Checks a metric. A value outside of the limits fails the wave; no value at all waits.",
        "person": "Waits for a person.",
    },
    m.TimeWindow: {
        "": "A span of the day in which revisions may be approved.",
        "days": "Weekdays on which the span begins: Mon, Tue, Wed, Thu, Fri, Sat, Sun. None means every day.",
        "start": "First minute, as `09:00`.",
        "end": "Minute at which the span is over, as `17:30` or `24:00`. An end before the start is on the "
        "next day.",
        "time_zone": "Name of a time zone, such as `Europe/Berlin`. The default is UTC.",
    },
    m.DenyWindow: {
        "": "Times in which nothing is approved. What is given must hold all together.",
        "days": "Weekdays on which the span begins: Mon, Tue, Wed, Thu, Fri, Sat, Sun. None means every day.",
        "start": "First minute, as `09:00`. The default is `00:00`.",
        "end": "Minute at which the span is over, as `17:30` or `24:00`. An end before the start is on the "
        "next day. The default is `24:00`.",
        "first_date": "First date on which the span begins, as `2026-12-24`. None means every date.",
        "last_date": "Last date on which the span begins. The default is the first one.",
        "time_zone": "Name of a time zone, such as `Europe/Berlin`. The default is UTC.",
    },
    m.Wave: {
        "": "A share of the targets, and what must hold before the next wave.",
        "percent": "Share of all targets that are approved when this wave is over, with those of earlier "
        "waves. It is rounded up.",
        "count": "Number of targets that are approved when this wave is over, with those of earlier waves.",
        "hold": "How long to wait after every target of the wave is proven good. Its checks are looked at "
        f"all the while. {_DURATION} None means no time.",
        "timeout": f"How long the wave may take before it counts as failed. {_DURATION} None means no limit.",
        "checks": "What must pass after the hold time. A wave without any passes at the end of its time.",
        "windows": "Times in which the targets of this wave may be approved, instead of those of the policy.",
    },
    m.Budgets: {
        "": "Limits of a rollout, and what happens beyond them.",
        "max_in_flight": "How many targets may be approved and not yet proven good at one time. 0 means no "
        "limit.",
        "max_failing": "How many targets may fail. One more fails the rollout.",
        "on_failure": "What a failed rollout does: `Stop` approves nothing more until a person decides, "
        "`RollBack` publishes the last good revision of each target again, in the same waves. The default is "
        "`Stop`.",
    },
    m.EvidenceObject: {
        "": "An object of the cluster that shows what became of a target.",
        "api_version": "Group and version of the object.",
        "kind": "Kind of the object.",
        "namespace": "CEL expression over the variable `target` (its name and labels) that gives the "
        "namespace of the object. None means any: the object counts only if one namespace has it.",
        "name": "CEL expression over the variable `target` that gives the name of the object, such as "
        "`target.labels['cluster'] + '-web'`.",
        "binding": "What shows that the object speaks of the published revision: `Commit` the commit that it "
        "reports, `Generation` that its spec names the revision and its status belongs to that spec, `Weak` "
        "only that its status has changed since before the approval.",
        "revision": "CEL expression over the variable `object` that gives the commit, or with the binding "
        "Generation the name or the commit of the package revision in its spec. Not given with Weak.",
        "current": "CEL expression over the variable `object` that gives true when what `good` and `bad` "
        "read belongs to that revision. None means that it always is.",
        "good": "CEL expression over the variable `object` that gives true when the target is good.",
        "bad": "CEL expression over the variable `object` that gives true when the target is bad.",
    },
    m.EvidenceQuery: {
        "": "A Prometheus query for each target, whose value must stay within limits.",
        "expression": "CEL expression over the variable `target` (its name and labels) that gives PromQL "
        "with a single value.",
        "window": "How long the value must have been within the limits since the revision was published. "
        f"{_DURATION} The default is `5m`.",
        "min": "Least value that is good.",
        "max": "Greatest value that is good.",
    },
    m.TargetEvidence: {
        "": "What proves a target, beside the conditions of its PackageVariant.",
        "deadline": "How long a target may be without evidence before it counts as failing, and the checks "
        "of a wave without `timeout` may not pass after its hold time. That stops the rollout, and rolls "
        "nothing back. "
        f"{_DURATION} The default is `30m`, also with nothing but Ready.",
        "condition_binding": "What shows that a condition other than Ready speaks of the published revision: "
        "`Revision` that its message has the name or the commit of it, `Weak` only that the condition has "
        "changed since before the approval. The default is `Revision`.",
        "object": "An object that must be good.",
        "query": "A metric that must be good.",
    },
    m.TrainMember: {
        "": "One of the packages that go as one.",
        "set": "Name of the PackageVariantSet whose variants are this member.",
        "upstream": "The upstream revision that was verified with those of the other members, as "
        "`REPOSITORY/PACKAGE@REVISION`. It is given for all members or for none.",
    },
    m.Train: {
        "": "Packages that were verified together: on each site their revisions are planned, proven, "
        "quarantined and rolled back as one unit.",
        "mode": "`InOrder` approves the members one after the other, each when those before it are proven. "
        "`Together` approves all in one step, which needs one repository for each site.",
        "members": "The packages, in the order in which they are approved. A rollback goes in reverse.",
        "label": "Key of the label that names the site of a variant: variants with one value are one unit. "
        "None means the downstream repository.",
        "annotation": "Annotation of the upstream PackageRevisions: those with the same value were verified "
        "together. None means what is proposed when the waves are planned.",
        "when_member_is_absent": "What happens on a site that has no variant of a member: `Wait` plans "
        "nothing there, `Skip` goes without that member. A canary is never planned without one. The default "
        "is `Wait`.",
        "partial_timeout": "How long a unit may have some members approved and others not, before it is "
        f"rolled back. {_DURATION} The default is `1h`.",
    },
    m.RolloutPolicySpec: {
        "revisions": "The revisions that this policy is for.",
        "approval": "Which proposed revisions are approved: `Manual` none before a person approves the wave, "
        "`Initial` those of packages without a published revision, `Always` all. The default is `Manual`. "
        "The annotation approval.nephio.org/policy of a revision goes before it.",
        "priority": "Which policy wins where several are for one revision: the highest. Among equals the "
        "oldest wins.",
        "delay": f"Least age of a revision when it is approved. {_DURATION} The annotation "
        "approval.nephio.org/delay of a revision goes before it.",
        "settle": "How long the proposed revisions must stay the same before an attempt plans its waves. "
        f"{_DURATION} The default is `30s`.",
        "canaries": "Names of the PackageVariants that come first, in this order. The first wave has at "
        "least all of them, and no later wave begins before each is proven good.",
        "when_canary_is_absent": "What happens while a canary does not exist, or is not one of the policy's "
        "targets: `Wait` approves nothing, `Skip` goes without it as long as another canary is left. The "
        "default is `Wait`.",
        "order": "Labels that order the targets. Targets with equal labels are ordered by name.",
        "conditions": "Conditions of its PackageVariant that prove an approved target good, all of them "
        "True. The default is Ready. Any other may be of any writer, and counts as `evidence` says.",
        "evidence": "What else proves a target, and what counts as evidence of its revision.",
        "waves": "The waves in their order. The last one has percent 100. None at all means one wave.",
        "windows": "Times in which revisions may be approved. None means always. Rollbacks do not wait for "
        "them.",
        "deny_windows": "Times in which nothing is approved, whatever windows and `pvbus rollout promote` "
        "say. Rollbacks do not wait for their end.",
        "budgets": "Limits on failing and unproven targets.",
        "train": "Packages that go as one. Percentages and budgets count units then. None means that each "
        "target goes alone.",
        "on_new_revision": "What a newer upstream revision does to an attempt that goes on: `Supersede` "
        "ends it, and the next begins with its first wave; after three in a row one finishes. With `Finish` "
        "it goes on as planned, and only the newest revision waits. The default is `Supersede`.",
    },
    m.TargetCounts: {
        "": "Numbers of the targets of the current attempt. A train on one site counts as one.",
        "total": "All targets of the plan.",
        "waiting": "Targets that wait for their approval.",
        "in_flight": "Targets that are approved, or ordered to be, and not yet proven good.",
        "proven": "Targets whose planned revision is published and proven good.",
        "failing": "Targets whose planned revision is published and not good, or was refused.",
        "rolled_back": "Targets whose last good revision is published again.",
        "left": "Targets that left the plan: their revision was withdrawn, replaced or deleted.",
        "unproven": "Targets whose planned revision is published, and whose attempt was superseded before "
        "anything said whether it is good.",
    },
    m.CanaryExcuse: {
        "": "A canary that one attempt goes without.",
        "attempt": "Number of the attempt.",
        "canary": "Name of the canary.",
        "reason": "Why the attempt goes without it.",
        "by": "Who said so, as the API server knows the user.",
        "at": "When that was.",
    },
    m.PastAttempt: {
        "": "One attempt, the current one too.",
        "attempt": "Number of the attempt.",
        "phase": "Its state, or the one it ended with.",
        "wave": "Number of the wave it came to, in a rollback that of the rollback.",
        "reason": "Why it stopped, ended early or rolled back, as a word.",
        "message": "The same in a sentence.",
        "started_at": "When its waves were planned.",
        "ended_at": "When it ended. None while it goes on.",
        "targets": "Numbers of its targets at its end.",
        "excused": "The canaries that it goes without, and who said so.",
        "quarantines": "Names of the Quarantines of what it brought, as it failed or was rolled back.",
        "combinations": "The first combinations of upstream revisions that its trains were planned with.",
        "not_quarantined": "Why a person wanted no quarantine of what it brought.",
        "skipped": "Upstream revisions that came while it went on, and never went out: newer ones followed.",
    },
    m.RolloutPolicyStatus: {
        "conditions": "Whether the policy is accepted, and how its rollout goes.",
        "observed_generation": "The metadata.generation that this status speaks of.",
        "phase": "State of the current attempt.",
        "attempt": "Number of the current attempt. Each plan of waves is an attempt.",
        "wave": "Number of the current wave, from 1.",
        "stops": "How often the current attempt has failed. The annotation promotion.pvbus.dev/resume names "
        "the attempt and this number.",
        "targets": "Numbers of the targets.",
        "runs_quarantined": "How many of all targets of the policy run what is quarantined.",
        "superseded": "How many attempts in a row ended as Superseded. After three the next one finishes.",
        "newer": "The upstream revisions that wait for the end of the current attempt.",
        "history": "The last attempts, the oldest first.",
    },
    q.QuarantinedUpstream: {
        "": "An upstream revision that failed, and the files that it had then.",
        "revision": "The upstream revision, as `REPOSITORY/PACKAGE@REVISION`. It stays covered if its tag is "
        "moved to other files.",
        "files": "Digest of the files that it had. Another revision with the same files is covered, too.",
        "good": "The last good upstream revision of these targets, in the same form.",
    },
    q.QuarantinedCombination: {
        "": "Upstream revisions of a train that failed together.",
        "upstreams": "The upstream revisions of its members, each as `REPOSITORY/PACKAGE@REVISION`.",
    },
    q.QuarantineRelease: {
        "": "How the quarantine ended.",
        "reason": "Why it was ended.",
        "by": "Who ended it, as the API server knows the user.",
        "at": "When that was.",
    },
    q.QuarantineSpec: {
        "sets": "Names of the PackageVariantSets whose variants are covered, whichever policy has them. None "
        "means every PackageVariant of the namespace.",
        "upstreams": "Upstream revisions of which nothing is proposed, approved or restored.",
        "combinations": "Upstream revisions that do not go out together on one site. Each of them may with "
        "others.",
        "contents": "Digests of packages that are not proposed, approved or restored.",
        "policy": "Name of the RolloutPolicy that wrote the quarantine. It lasts longer than the policy.",
        "attempt": "Number of the attempt that failed or was rolled back.",
        "reason": "Why, as a word.",
        "message": "The same in a sentence.",
        "released": "Set when a person ends the quarantine: it covers nothing any more.",
    },
    q.Quarantine: {
        "": "What failed in a rollout or was rolled back, and does not go out again before a person says so.",
    },
    s.StopLift: {
        "": "How an entry ended.",
        "reason": "Why it was lifted.",
        "by": "Who lifted it, as the API server knows the user.",
        "at": "When that was.",
    },
    s.StopEntry: {
        "": "A stop that one person wants.",
        "name": "Its name, which no other entry has.",
        "reason": "Why all rollouts stop.",
        "by": "Who wants it, as the API server knows the user.",
        "at": "Since when.",
        "let_roll_backs": "Whether rollbacks go on. They do if every entry that lasts says so.",
        "lifted": "Set when a person lifts it: it stops nothing any more.",
    },
    s.RolloutStopSpec: {
        "entries": "Who wants the stop. It ends when the last of them is lifted, or the object is deleted.",
    },
    s.RolloutStopStatus: {
        "partitions": "How many partitions of release have to confirm.",
        "confirmed": "The last generation that each partition of release follows, by its number: it carries "
        "out nothing more that this generation stops.",
    },
    s.RolloutStop: {
        "": "Stops all rollouts of the installation, whichever namespace it is in.",
    },
    m.RolloutPolicy: {
        "": "How proposed package revisions of a fleet are approved: in which waves, after which checks."
    },
}

_PERCENT = {"minimum": 1, "maximum": 100}
_NOT_NEGATIVE = {"minimum": 0}
_NAMED = {"minLength": 1, "maxLength": 63}
_CLOCK = {"pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}
_DATE = {"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
_ITEMS = {"maxItems": 64}

SHAPES: Mapping[type, Mapping[str, Mapping[str, Any]]] = {
    m.RevisionsSelector: {"repositories": {"maxItems": 1024}},
    m.LabelOrder: {"values": {"maxItems": 1024}},
    m.Check: {"name": _NAMED},
    m.ObjectCheck: {"expression": {"minLength": 1, "maxLength": 4096}},
    m.QueryCheck: {"expression": {"minLength": 1, "maxLength": 4096}},
    m.PersonCheck: {"question": {"minLength": 1, "maxLength": 4096}},
    m.TimeWindow: {
        "days": {"maxItems": 7},
        "start": _CLOCK,
        "end": {"pattern": "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"},
    },
    m.DenyWindow: {
        "days": {"maxItems": 7},
        "start": _CLOCK,
        "end": {"pattern": "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"},
        "first_date": _DATE,
        "last_date": _DATE,
    },
    m.Wave: {"percent": _PERCENT, "count": {"minimum": 1}, "checks": _ITEMS, "windows": _ITEMS},
    m.Budgets: {
        "max_in_flight": _NOT_NEGATIVE,
        "max_failing": _NOT_NEGATIVE,
        "on_failure": {"enum": list(m.ON_FAILURE), "default": "Stop"},
    },
    m.EvidenceObject: {
        "binding": {"enum": list(m.BINDINGS)},
        **{
            field: {"maxLength": 4096}
            for field in ("bad", "current", "good", "name", "namespace", "revision")
        },
    },
    m.EvidenceQuery: {"expression": {"minLength": 1, "maxLength": 4096}},
    m.TargetEvidence: {
        "condition_binding": {"enum": list(m.CONDITION_BINDINGS), "default": "Revision"},
    },
    m.TrainMember: {"set": {"minLength": 1}},
    m.Train: {
        "mode": {"enum": list(m.TRAIN_MODES)},
        "members": {"minItems": 2, "maxItems": 16},
        "when_member_is_absent": {"enum": list(m.WHEN_MEMBER_IS_ABSENT), "default": "Wait"},
    },
    m.RolloutPolicySpec: {
        "approval": {"enum": list(m.APPROVALS), "default": "Manual"},
        "canaries": {"maxItems": 1024},
        "when_canary_is_absent": {"enum": list(m.WHEN_CANARY_IS_ABSENT), "default": "Wait"},
        "on_new_revision": {"enum": list(m.ON_NEW_REVISION), "default": "Supersede"},
        "conditions": _ITEMS,
        "order": _ITEMS,
        "waves": _ITEMS,
        "windows": _ITEMS,
        "deny_windows": _ITEMS,
    },
    m.RolloutPolicyStatus: {"observed_generation": {"format": "int64"}},
    q.QuarantinedUpstream: {"revision": {"minLength": 1}},
    q.QuarantineRelease: {"reason": {"minLength": 1}},
    s.StopLift: {"reason": {"minLength": 1}},
    s.StopEntry: {"name": _NAMED, "reason": {"minLength": 1}},
    s.RolloutStopSpec: {"entries": _ITEMS},
    q.QuarantinedCombination: {"upstreams": {"minItems": 2, "maxItems": 16}},
    q.QuarantineSpec: {
        "combinations": {"maxItems": 1024},
        "upstreams": {"maxItems": 1024},
        "contents": {"maxItems": 16_384},
    },
}

TYPE_SHAPES: Mapping[type, Mapping[str, Any]] = {
    m.LabelOrder: {"required": ["label"]},
    m.ObjectCheck: {"required": ["apiVersion", "expression", "kind", "name"]},
    m.QueryCheck: {"required": ["expression"]},
    m.PersonCheck: {"required": ["question"]},
    m.EvidenceObject: {"required": ["apiVersion", "binding", "good", "kind", "name"]},
    m.EvidenceQuery: {"required": ["expression"]},
    m.Check: {"required": ["name"]},
    m.TrainMember: {"required": ["set"]},
    m.Train: {"required": ["members", "mode"]},
    q.QuarantinedCombination: {"required": ["upstreams"]},
    m.TimeWindow: {"required": ["end", "start"]},
    q.QuarantinedUpstream: {"required": ["revision"]},
    q.QuarantineRelease: {"required": ["reason"]},
    q.Quarantine: {"required": ["spec"]},
    s.StopLift: {"required": ["reason"]},
    s.StopEntry: {"required": ["name", "reason"]},
    s.RolloutStop: {"required": ["spec"]},
}
