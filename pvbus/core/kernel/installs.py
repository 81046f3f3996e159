"""What both families say with their installs, in one form."""

from typing import Literal, NamedTuple

Family = Literal["crossplane", "carvel"]


class Override(NamedTuple):
    """What an install says of one of its dependencies. If both names are "", it is for none.

    dependency: the name of the item
    package: the package that the dependency needs
    range: the range instead of the item's, "" to keep the item's
    is_installed: whether the dependency may be installed, None for what the install says
    values: names of Secrets in the install's namespace
    value_keys: for each of these Secrets the key that is used, "" for all its keys
    """

    dependency: str = ""
    package: str = ""
    range: str = ""
    prereleases: tuple[str, ...] | None = None
    is_installed: bool | None = None
    values: tuple[str, ...] = ()
    value_keys: tuple[str, ...] = ()


class Install(NamedTuple):
    """A request for a package, of a user or of another install.

    okey: the okey of the object
    package: its name in the resolver: the image without tag and digest, or Carvel's refName
    target: where it is unique, as in `pvbus.core.platform.solver.model`: "" or a namespace
    tag, digest, range: which version is wanted; beside a range neither a tag nor a digest. With a digest, the
        tag only says which version its content is
    language: the language of the range
    owner: the okey of the install that this one was created for, "" for a user's
    secrets: keys `<namespace>/<name>` of pull secrets
    is_manual: whether a user activates revisions
    history_max: how many inactive revisions stay, 0 for all
    skips_dependencies, ignores_platform: Crossplane's switches
    installs_dependencies: whether dependencies are installed; if not, they must be there
    removal: what a removal does with installs that only this one held
    strategy: see `creations_of`
    downgrades: whether a version below the installed one is allowed
    installed: the version that its status reports, "" for none
    pull_policy: the pull policy of its image; with `Never`, only content that is there is used, whatever the
        tag says
    common_labels, common_annotations: what every object that it installs gets
    runtime_config: the name of a DeploymentRuntimeConfig, "" for none
    account_annotations: the annotations of its controller's ServiceAccount
    """

    okey: str
    family: Family
    uid: str
    generation: int
    package: str
    target: str = ""
    tag: str = ""
    digest: str = ""
    range: str = ""
    language: str = "masterminds"
    prereleases: tuple[str, ...] | None = None
    owner: str = ""
    secrets: tuple[str, ...] = ()
    is_manual: bool = False
    history_max: int = 1
    skips_dependencies: bool = False
    ignores_platform: bool = False
    installs_dependencies: bool = True
    overrides: tuple[Override, ...] = ()
    service_account: str = ""
    removal: Literal["orphan", "delete", "keep-if-used"] = "orphan"
    strategy: Literal["direct", "closure"] = "direct"
    downgrades: bool = False
    is_paused: bool = False
    is_deleted: bool = False
    installed: str = ""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    common_labels: tuple[tuple[str, str], ...] = ()
    common_annotations: tuple[tuple[str, str], ...] = ()
    runtime_config: str = ""
    account_annotations: tuple[tuple[str, str], ...] = ()
