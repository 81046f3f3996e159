"""Settings of the processes, with their units, defaults and reasons; `configuration` reads them at start.

What a service makes of its settings is imported where it is made: every command and process reads settings,
and few need the core of unroll or resolve, which takes a tenth of a second.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from pvbus.core.errors import UsageError
from pvbus.core.kernel.packagerows import Installer
from pvbus.core.platform.solver.model import Policy, VersionPolicy

if TYPE_CHECKING:
    from pvbus.core.platform.resolve.plans import Settings as ResolveSettings
    from pvbus.core.variants.unroll.removal import RemovalLimits
    from pvbus.core.variants.unroll.signedplans import PlanPolicy

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]
Namespaces = Annotated[str, msgspec.Meta(pattern=r"^$|^[a-z0-9-]{1,63}(, *[a-z0-9-]{1,63})*$")]
"""Names separated by commas."""
NAMESPACES_WANTED = "must be names of namespaces, separated by commas"
Sasl = Literal["", "scram-sha-256", "scram-sha-512", "oauthbearer"]


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of every process.

    log_level: `debug` also logs conflicts and waits. log_format: `auto` is columns on a terminal, JSON
    elsewhere. core_files: whether a crash may write a core file, within the hard limit of `ulimit -c`; it
    has the whole memory, with every token and Secret.
    """

    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"
    core_files: bool = False


class KafkaConfig(ProcessConfig, frozen=True, kw_only=True, rename="camel"):
    """Connection to Kafka; ignored for a bus in a file.

    kafka_tls: whether connections are encrypted; the files below need it. kafka_ca_file: PEM of the CA of
    the brokers' certificates, "" for the machine's own CAs. kafka_certificate_file, kafka_key_file: ours,
    for brokers that require one; kafka_key_password_file if the key has a password. kafka_sasl: the
    authentication, "" for none; SCRAM takes kafka_username and kafka_password_file, and oauthbearer
    kafka_token_file, which is read again for each connection, as tokens are replaced. Secrets are in files
    and never in a variable: a process's environment is inherited by every program that it starts, and
    shown by `docker inspect`, by /proc and in crash reports; a file has an owner.

    kafka_replication: copies of each topic; 0 is three, or the number of brokers if that is less. With
    fewer than two, a disk failure loses acknowledged records. kafka_session_seconds: how long a worker may
    send no heartbeat before its leases move to others; if shorter, a pause of its machine costs a restore;
    if longer, the keys of a dead worker wait. Brokers accept 6 to 1800 by default.

    kafka_snapshots: folder of copies of what a start reads from Kafka, so that it reads only what came since;
    "" for none. They may be deleted at any time, and are left out where they may be wrong.
    kafka_snapshot_seconds: how often they are brought up to date.
    schema_registry: URL of a Confluent-compatible registry without a login, where `pvbus topics --register`
    registers the schemas of the public topics; "" for none.
    """

    kafka_tls: bool = False
    kafka_ca_file: str = ""
    kafka_certificate_file: str = ""
    kafka_key_file: str = ""
    kafka_key_password_file: str = ""
    kafka_sasl: Sasl = ""
    kafka_username: str = ""
    kafka_password_file: str = ""
    kafka_token_file: str = ""
    kafka_replication: Annotated[int, msgspec.Meta(ge=0, le=32_767)] = 0
    kafka_session_seconds: Annotated[float, msgspec.Meta(ge=3)] = 10.0
    kafka_snapshots: str = ""
    kafka_snapshot_seconds: Annotated[float, msgspec.Meta(ge=1)] = 600.0
    schema_registry: str = ""


class ServiceConfig(KafkaConfig, frozen=True, kw_only=True, rename="camel"):
    """Settings of every service; ingest, render, inject and release have no settings of their own.

    bus: `sqlite:<path>`, or `kafka://HOST:PORT[,HOST:PORT...][/PREFIX]`; installations that share a Kafka
    cluster each have a prefix. kubeconfig: "" takes the pod's service account, else $KUBECONFIG or
    ~/.kube/config; context: of the kubeconfig, "" for the current one. health_host, health_port: address
    of /metrics, /healthz and /readyz; loopback by default, as they are not secret, but internal; port 0
    takes any free one, which the log names. health_names: names by which requests may reach it, separated by
    commas, beside localhost, its host name, its addresses and the names of Services; others get 403, as a
    page of another site could use them. beside_porch: whether render, inject and conditions write
    although Porch's own controllers of variants and sets do; both then undo each other's writes.

    namespaces: those that pvbus works in, separated by commas, so that rights in these suffice; "" for all.
    All services of an installation have the same ones. Objects outside are not seen, and nothing is deleted
    because its namespace is not in the list any more. Sets cannot select cluster-scoped kinds then.
    """

    bus: str = "sqlite:.pvbus/bus.db"
    kubeconfig: str = ""
    context: str = ""
    health_host: str = "127.0.0.1"
    health_port: Port = 0
    health_names: str = ""
    beside_porch: bool = False
    namespaces: Namespaces = ""

    @property
    def namespace_names(self) -> tuple[str, ...]:
        """Return the namespaces in order, each once; () for all."""
        return split_names(self.namespaces)


_KEY = r"(ssh-ed25519 [A-Za-z0-9+/]{68}|RW[A-Za-z0-9+/]{54})"
_SIGNER = rf"[A-Za-z0-9._@-]+ {_KEY}( [^,\n]*)?"
SIGNERS = rf"^\s*$|^\s*{_SIGNER}(\s*[,\n]\s*{_SIGNER})*\s*$"


class UnrollConfig(ServiceConfig, frozen=True, kw_only=True, rename="camel"):
    """Limits of removals, for all sets; a set's annotations may replace those of the guard.

    removal_quiet_seconds: removals of a set are ordered once none was added for this long; if shorter, an
    ongoing accident is not seen as a whole; if longer, removals lag. removals_max, removals_share: if a set
    has more removals within ten minutes than both (a share of the children that it had), they are held for
    confirmation.

    plan_required: patterns of NAMESPACE/NAME, separated by commas, of the sets that are followed only with a
    signed plan, whatever their annotations say. plan_signers: who can sign, `NAME ssh-ed25519 KEY`, or
    `NAME KEY` with a key of minisign, separated by commas; in a cluster from a ConfigMap that only operators
    write. Without signers, a set that needs a signed plan is on hold.
    """

    removal_quiet_seconds: Annotated[float, msgspec.Meta(ge=0, le=600)] = 5.0
    removals_max: Annotated[int, msgspec.Meta(ge=0)] = 5
    removals_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    plan_required: str = ""
    plan_signers: Annotated[str, msgspec.Meta(pattern=SIGNERS)] = ""

    @property
    def plans(self) -> "PlanPolicy":
        from pvbus.core.variants.unroll.signedplans import policy_of

        return policy_of(self.plan_required, self.plan_signers)

    @property
    def limits(self) -> "RemovalLimits":
        from pvbus.core.variants.unroll.removal import RemovalLimits

        return RemovalLimits(self.removal_quiet_seconds, self.removals_max, self.removals_share)


ClusterName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._~-]{0,253}$")]
Source = Annotated[str, msgspec.Meta(pattern=r"^[!-~]*$")]


class ConditionsConfig(ServiceConfig, frozen=True, kw_only=True, rename="camel"):
    """cluster_name: of the cluster, for the events; "" takes the random id that the installation got at its
    first start. source: `ce_source` of the events, a URI reference that identifies the installation; "" is
    `/pvbus/CLUSTER/PREFIX`, with the prefix of the bus if it has one. All processes have the same two.
    """

    cluster_name: ClusterName = ""
    source: Source = ""


class PromoteConfig(ServiceConfig, frozen=True, kw_only=True, rename="camel"):
    """promote_returns: whether a proposal of promote that loses its readiness before it is approved becomes a
    draft again."""

    promote_returns: bool = True


HttpUrl = Annotated[str, msgspec.Meta(pattern=r"^$|^https?://[^/@?#\s]+(/[^@?#\s]*)?$")]


Mirrors = Annotated[
    str,
    msgspec.Meta(pattern=r"^$|^[A-Za-z0-9.:-]+=[A-Za-z0-9.:/_-]+(, *[A-Za-z0-9.:-]+=[A-Za-z0-9.:/_-]+)*$"),
]
"""`registry=address[/prefix]`, separated by commas."""


class SourcesConfig(ServiceConfig, frozen=True, kw_only=True, rename="camel"):
    """Where packages are read from: image registries, git, and files in the source itself.

    sources_cache: a folder of contents by their digest, which processes may share; it may be removed at any
    time. sources_cache_mb: its size; contents that were not used for longest are removed above it.
    sources_mirrors: `registry=address[/prefix]`, separated by commas: asked before the registry, without its
    login. sources_ca_file: PEM of authorities that are trusted beside the machine's. sources_local: folders
    of this machine, separated by commas, in which git+file:// may read; "" for none. sources_layer_mb: of a
    layer as it is sent; sources_content_mb: of what it unpacks to. sources_timeout_seconds: of one attempt.
    """

    sources_cache: str = ".pvbus/sources"
    sources_cache_mb: Annotated[int, msgspec.Meta(ge=0)] = 1024
    sources_mirrors: Mirrors = ""
    sources_ca_file: str = ""
    sources_local: str = ""
    sources_layer_mb: Annotated[int, msgspec.Meta(ge=1)] = 64
    sources_content_mb: Annotated[int, msgspec.Meta(ge=1)] = 128
    sources_timeout_seconds: Seconds = 60.0


class RolloutConfig(ServiceConfig, frozen=True, kw_only=True, rename="camel"):
    """prometheus_url: address of the Prometheus that answers the query checks of RolloutPolicies, with the
    path before `/api/v1` if it has one; "" for none, and query checks wait. prometheus_token_file: a bearer
    token for it, read again when the file changes; "" for none. prometheus_ca_file: PEM of the CA of its
    certificate, "" for the machine's own CAs.
    """

    prometheus_url: HttpUrl = ""
    prometheus_token_file: str = ""
    prometheus_ca_file: str = ""


Platforms = Annotated[str, msgspec.Meta(pattern=r"^$|^[a-z0-9-]+=[^,=\s]+(, *[a-z0-9-]+=[^,=\s]+)*$")]
"""NAME=VERSION, separated by commas."""


class PlatformConfig(SourcesConfig, frozen=True, kw_only=True, rename="camel"):
    """What resolve and establish have in common. package_namespace: of the pull secrets and runtimes of
    Crossplane's packages. installer: `pvbus`, or `others` where Crossplane and kapp-controller run: then
    pvbus decides, and they verify signatures and install."""

    package_namespace: str = "crossplane-system"
    installer: Installer = "pvbus"


class ResolveConfig(PlatformConfig, frozen=True, kw_only=True, rename="camel"):
    """version_policy: which version a package gets, as `--policy` of `pvbus resolve`. platforms: what the
    cluster runs, `crossplane=2.0.0, kubernetes=1.33.0` for example; a package that needs a version of a
    platform that is not here cannot be installed. observe_seconds: between two looks at a source, by which a
    moved tag or a new version is found.
    """

    version_policy: VersionPolicy = "minimal-change"
    platforms: Platforms = ""
    observe_seconds: Annotated[float, msgspec.Meta(ge=1)] = 300.0

    @property
    def resolving(self) -> "ResolveSettings":
        return resolve_settings(self.version_policy, self.platforms, self.installer)


def resolve_settings(
    version_policy: VersionPolicy, platforms: str, installer: Installer
) -> "ResolveSettings":
    """Return how resolve chooses. platforms: NAME=VERSION, separated by commas."""
    from pvbus.core.platform.resolve.plans import Settings as ResolveSettings

    named = (each.strip().partition("=") for each in platforms.split(",") if each.strip())
    pairs = tuple(sorted((name, version) for name, _, version in named))
    return ResolveSettings(Policy(versions=version_policy), pairs, is_verified_beside=installer == "others")


class ServicesConfig(UnrollConfig, frozen=True, kw_only=True, rename="camel"):
    """Several services in one process, for `pvbus run` and `pvbus up`."""

    cluster_name: ClusterName = ""
    source: Source = ""
    promote_returns: bool = True
    prometheus_url: HttpUrl = ""
    prometheus_token_file: str = ""
    prometheus_ca_file: str = ""
    sources_cache: str = ".pvbus/sources"
    sources_cache_mb: Annotated[int, msgspec.Meta(ge=0)] = 1024
    sources_mirrors: Mirrors = ""
    sources_ca_file: str = ""
    sources_local: str = ""
    sources_layer_mb: Annotated[int, msgspec.Meta(ge=1)] = 64
    sources_content_mb: Annotated[int, msgspec.Meta(ge=1)] = 128
    sources_timeout_seconds: Seconds = 60.0
    package_namespace: str = "crossplane-system"
    version_policy: VersionPolicy = "minimal-change"
    platforms: Platforms = ""
    observe_seconds: Annotated[float, msgspec.Meta(ge=1)] = 300.0
    installer: Installer = "pvbus"

    @property
    def resolving(self) -> "ResolveSettings":
        return resolve_settings(self.version_policy, self.platforms, self.installer)


class WebConfig(ProcessConfig, frozen=True, kw_only=True, rename="camel"):
    """The page of the fleet, for `pvbus run web` and `pvbus up`. Its bus is set as that of the services.

    web_host, web_port: address of the page; loopback by
    default, as it is plain HTTP; port 0 takes any free one. web_names: further host names, separated by
    commas, that browsers use for it, of a proxy with TLS for example; requests with another Host are refused.
    web_certificate_file, web_key_file: PEM, to serve it over TLS, the certificate with its chain; read again
    when they change; "" is plain HTTP.
    web_token_file: the secret of the page's address, at least 16 characters; "" makes one at each start, and
    `pvbus up` keeps one in the data folder.
    web_mode: whether people can sign in with a Kubernetes token, and act as their own users. `auto`: with
    `pvbus up` and with a kubeconfig; `work`: also with the default kubeconfig, or the API server of the pod;
    `read-only`: the page only shows.
    """

    web_host: str = "127.0.0.1"
    web_port: Port = 0
    web_names: str = ""
    web_certificate_file: str = ""
    web_key_file: str = ""
    web_token_file: str = ""
    web_mode: Literal["auto", "work", "read-only"] = "auto"


Names = Annotated[str, msgspec.Meta(pattern=r"^$|^[A-Za-z0-9./-]+(, *[A-Za-z0-9./-]+)*$")]


class SinkConfig(ProcessConfig, frozen=True, kw_only=True, rename="camel"):
    """The webhook sink, for `pvbus run sink`. Its bus, and the address of its health, are set as those of the
    services.

    sink_url: where events are posted, http or https. sink_token_file: has the bearer token, and is read for
    each request; needs https, or a receiver on this machine. sink_ca_file: PEM of the CA of the receiver's
    certificate, "" for the machine's own CAs. sink_mode: of CloudEvents over HTTP. sink_start: where a sink
    begins that has sent nothing yet: `latest` sends the last event of each condition, then the changes;
    `oldest` the changes that are retained. sink_kinds, sink_types: of the objects
    and conditions whose events are sent, separated by commas; "" for all. sink_timeout_seconds: of a request.
    sink_in_flight: requests at a time; each object has one at most. sink_attempts: failures of one event,
    while the receiver accepts others, after which it is a dead letter. sink_retry_seconds: the longest wait
    before a retry; the receiver's Retry-After may be longer, up to 300.
    """

    sink_url: str = ""
    sink_token_file: str = ""
    sink_ca_file: str = ""
    sink_mode: Literal["binary", "structured"] = "binary"
    sink_start: Literal["latest", "oldest"] = "latest"
    sink_kinds: Names = ""
    sink_types: Names = ""
    sink_timeout_seconds: Seconds = 30.0
    sink_in_flight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    sink_attempts: Annotated[int, msgspec.Meta(ge=1)] = 10
    sink_retry_seconds: Annotated[float, msgspec.Meta(ge=0.5, le=3600)] = 30.0


FunctionEngine = Literal["", "auto", "podman", "docker", "nerdctl"]


class ApiServerConfig(ProcessConfig, frozen=True, kw_only=True, rename="camel"):
    """The embedded API server with its package store.

    functions: image (with or without its tag, or its bare name) to a command line, or to
    `builtin:<name>`; in a variable as YAML. allow_exec: whether a Kptfile may name a command line itself,
    which then runs with the rights of this process. isolate_functions: whether these programs run without
    network, where Linux permits user namespaces. function_engine: runs the images that are neither mapped nor
    built in; auto takes the first that is there. function_runner: HOST:PORT of Porch's function runner, for
    the images that are left; needs the extra `pvbus[grpc]`. fetch_seconds: between fetches of a remote;
    poll_seconds: between checks of the refs of a repository on this machine. packages_local: folders of this
    machine, separated by commas, in which Repositories and clones may have paths; "" for none. The holder of
    the data folder may register any path; the data folder itself is never in one of them.
    """

    functions: Mapping[str, str] = {}
    allow_exec: bool = False
    isolate_functions: bool = True
    function_engine: FunctionEngine = ""
    function_runner: str = ""
    fetch_seconds: Seconds = 60.0
    poll_seconds: Seconds = 2.0
    packages_local: str = ""

    @property
    def local_folders(self) -> tuple[str, ...]:
        return split_folders(self.packages_local)


class PackagesConfig(ApiServerConfig, frozen=True, kw_only=True, rename="camel"):
    """The package store as an aggregated API, for `pvbus run packages`.

    kubeconfig, context, health_host, health_port, health_names: as for the services. packages_data: the
    folder of the mirrors of git repositories, a cache that each process has of its own. serving_host: "" is
    every interface. serving_port: of the API, 0 takes any free one. serving_name: what kube-apiserver
    expects in the certificate, SERVICE.NAMESPACE.svc. serving_certificate_file, serving_key_file: PEM, read
    again when they change; "" makes a certificate and its authority at the start. serving_write_authority:
    whether the process adds such an authority to its APIService itself, which takes the right to update it.
    namespaces: in which alone it has the right to read Secrets; "" for all.
    """

    kubeconfig: str = ""
    context: str = ""
    health_host: str = "127.0.0.1"
    health_port: Port = 0
    health_names: str = ""
    packages_data: str = ".pvbus/packages"
    serving_host: str = ""
    serving_port: Port = 8443
    serving_name: str = "pvbus-packages.pvbus-system.svc"
    serving_certificate_file: str = ""
    serving_key_file: str = ""
    serving_write_authority: bool = False
    namespaces: Namespaces = ""


SERVICE_CONFIGS: Mapping[str, type[ServiceConfig]] = {
    "ingest": ServiceConfig,
    "unroll": UnrollConfig,
    "render": ServiceConfig,
    "inject": ServiceConfig,
    "conditions": ConditionsConfig,
    "promote": PromoteConfig,
    "rollout": RolloutConfig,
    "release": ServiceConfig,
    "resolve": ResolveConfig,
    "establish": PlatformConfig,
}
ALL_CONFIGS: tuple[type[ProcessConfig], ...] = (
    *SERVICE_CONFIGS.values(),
    ServicesConfig,
    SourcesConfig,
    PackagesConfig,
    WebConfig,
    SinkConfig,
)


def host_names(text: str) -> tuple[str, ...]:
    """Return the names of hosts in a comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def split_names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list in order, each once.

    Raises UsageError if one cannot be the name of a namespace.
    """
    try:
        msgspec.convert(text, Namespaces)
    except msgspec.ValidationError as exc:
        raise UsageError(f"{text!r} {NAMESPACES_WANTED}") from exc
    names = (name.strip() for name in text.split(","))
    return tuple(sorted({name for name in names if name}))


def split_folders(text: str) -> tuple[str, ...]:
    """Return the folders of a comma-separated list."""
    return tuple(each.strip() for each in text.split(",") if each.strip())
