"""Lists the commands of `pvbus`: by group, with their modules and the sentences of `pvbus --help`.

The overview is printed from this table, so that it imports no command. A test compares the sentences with
those of the commands.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Entry(NamedTuple):
    """A command.

    location: its module and function, as `module:function`
    summary: its short help
    """

    location: str
    summary: str


GROUPS: Mapping[str, Mapping[str, Entry]] = {
    "Look": {
        "status": Entry("pvbus.cli.status:status", "Show the fleet on one screen, and what needs a person."),
        "get": Entry("pvbus.cli.get:get", "List variants, targets, conflicts, removals."),
        "explain": Entry("pvbus.cli.explain:explain", "Explain the state of a variant, set or revision."),
        "conditions": Entry(
            "pvbus.cli.conditionevents:conditions", "Show every object's conditions, and changes."
        ),
        "history": Entry(
            "pvbus.cli.spechistory:history", "List who changed a set, a policy or a variant, and when."
        ),
        "diff": Entry("pvbus.cli.diff:diff", "Show what a variant's draft changes; settle conflicts."),
        "wait": Entry("pvbus.cli.wait:wait", "Wait until a change has arrived everywhere."),
        "lag": Entry("pvbus.cli.lag:lag", "Show each partition's owner, lag and progress."),
    },
    "Change": {
        "validate": Entry("pvbus.cli.validate:validate", "Check manifests without a cluster."),
        "plan": Entry("pvbus.cli.plan:plan", "Preview every write of some manifests."),
        "apply": Entry("pvbus.cli.planapply:apply", "Carry out a plan, exactly as it was made."),
        "undo": Entry("pvbus.cli.undo:undo", "Give a set or a policy the spec that it had before."),
        "sign": Entry("pvbus.cli.plansign:sign", "Sign a plan with a key of SSH or minisign."),
        "conflicts": Entry(
            "pvbus.cli.conflicts:conflicts", "Settle equal conflicts of many variants at once."
        ),
        "import": Entry(
            "pvbus.cli.importing.command:import_", "Make sets of ApplicationSets or Fleet's bundles."
        ),
        "export": Entry("pvbus.cli.export:export", "Write what `plan` needs of a live system into a file."),
        "propose": Entry("pvbus.cli.proposals:propose", "Propose the drafts of a set's variants."),
        "approve": Entry("pvbus.cli.proposals:approve", "Publish what is proposed of a set's variants."),
        "reject": Entry("pvbus.cli.proposals:reject", "Make drafts again of what is proposed."),
        "task": Entry("pvbus.cli.task:task", "List, ask and answer questions to people."),
        "condition": Entry("pvbus.cli.condition:condition", "Show and set conditions of a package revision."),
        "retry": Entry("pvbus.cli.retry:retry", "Try again now, not after the backoff."),
    },
    "Safety": {
        "confirm": Entry("pvbus.cli.confirm:confirm", "Show deletions that are held, and confirm them."),
        "hold": Entry("pvbus.cli.holding:hold", "Stop all writes for a variant or a set."),
        "unhold": Entry("pvbus.cli.holding:unhold", "Let the writes for a variant or a set go on."),
        "backup": Entry("pvbus.cli.backup:backup", "Write a data folder to a file."),
        "restore": Entry("pvbus.cli.backup:restore", "Make a data folder from such a file."),
    },
    "Rollouts": {
        "rollout": Entry(
            "pvbus.cli.rollout:rollout", "Approve proposed revisions in waves: show and steer it."
        ),
    },
    "Packages": {
        "packages": Entry(
            "pvbus.cli.packages.command:packages",
            "Show, read and delete packages that depend on each other.",
        ),
        "resolve": Entry(
            "pvbus.cli.resolve:resolve", "Choose versions of packages that depend on each other."
        ),
    },
    "Run": {
        "up": Entry("pvbus.cli.up:up", "Run everything on this machine."),
        "demo": Entry("pvbus.cli.demo:demo", "Tell a story with the example fleet."),
        "run": Entry("pvbus.cli.run:run", "Run services alone, until told to end."),
        "apiserver": Entry("pvbus.cli.apiserver:apiserver", "Serve the Kubernetes API and packages alone."),
        "topics": Entry("pvbus.cli.topics:topics", "Look at the bus; make and check its topics."),
        "user": Entry("pvbus.cli.users:user", "Give other people access, each with a token and rights."),
    },
    "Install": {
        "install": Entry("pvbus.cli.install:install", "Install the services on a cluster, or upgrade them."),
        "size": Entry("pvbus.cli.size:size", "Compute what a fleet needs on Kafka and a cluster."),
        "doctor": Entry("pvbus.cli.doctor.command:doctor", "Find out what keeps the services from working."),
        "completion": Entry("pvbus.cli.completion:completion", "Print the completion script of a shell."),
        "man": Entry("pvbus.cli.man:man", "Write manual pages of all commands."),
        "version": Entry("pvbus.cli.version:version", "Show the version."),
    },
}
"""In the order of the overview."""

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("list", "ls"),
        "pvbus get variants lists the fleet, kubectl get the objects themselves; pvbus conditions shows what "
        "each reports, and pvbus explain NAME why.",
    ),
    **dict.fromkeys(
        ("health", "top"),
        "pvbus status shows the fleet and what needs a person, pvbus explain NAME why, and pvbus lag how far "
        "the services are.",
    ),
    "describe": "pvbus explain NAME says why a variant or a set is as it is.",
    "create": "kubectl apply -f FILE writes manifests; pvbus plan -f FILE shows first what would follow, and "
    "pvbus up FILE runs them on this machine.",
    "delete": "kubectl delete removes objects; pvbus plan --help says how to see first what would go.",
    "edit": "kubectl edit changes an object; pvbus diff NAME shows what a draft changes.",
    **dict.fromkeys(
        ("events", "watch", "logs"),
        "pvbus conditions --follow shows changes as they come; services log to their standard error.",
    ),
    **dict.fromkeys(("start", "serve"), "pvbus up runs everything, and pvbus run single services."),
    "stop": "Ctrl-C ends pvbus up; pvbus hold NAME stops the writes for a variant or a set.",
    "rollback": "pvbus undo gives a set or a policy its former spec, and pvbus rollout roll-back takes a "
    "rollout back.",
    "help": "pvbus --help lists the commands, and pvbus COMMAND --help explains one.",
}
"""Words that other command lines have, and what to type here instead."""

COMMANDS: Mapping[str, Entry] = {name: entry for group in GROUPS.values() for name, entry in group.items()}
