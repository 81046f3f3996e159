"""Prometheus metrics: prefix `pvbus_`, base units, closed label sets, known values start at 0."""

from prometheus_client import Counter, Gauge, Histogram, Info

from pvbus import __version__
from pvbus.core.kernel.topics import ALL_SERVICES

OUTCOMES = (
    "unchanged",
    "changed",
    "waiting",
    "failed",
    "held",
    "transient",
    "conflict",
    "permanent",
    "defect",
)

RECONCILES = Counter(
    "pvbus_reconcile_total", "Reconciliations that ended, by service and outcome.", ["service", "outcome"]
)
RECONCILE_SECONDS = Histogram(
    "pvbus_reconcile_duration_seconds",
    "Time from the start of a reconciliation to its committed outcome.",
    ["service"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
EFFECTS = Counter(
    "pvbus_effects_total", "Calls to the API server, by verb and outcome.", ["effect", "outcome"]
)
QUERIES = Counter(
    "pvbus_queries_total", "Queries to Prometheus for the checks of rollouts, by outcome.", ["outcome"]
)
SOURCE_READS = Counter(
    "pvbus_source_reads_total",
    "Reads of sources of packages: what they have now, and contents, from the cache, too.",
    ["effect", "outcome"],
)
PROGRAMS = Counter(
    "pvbus_programs_total",
    "Programs that rendered templates of packages, by program and outcome; permanent: missing, or killed.",
    ["program", "outcome"],
)
EVALUATIONS = Counter(
    "pvbus_evaluations_total",
    "Targets (unroll), templates (render) and components of packages (resolve) that were evaluated.",
    ["service"],
)
SECOND_OPINIONS = Counter(
    "pvbus_second_opinions_total",
    "Evaluations for a sample of a set's targets that cel-python has repeated, by outcome: agreed, disputed, "
    "left_out (for what it costs), not_comparable (cel-python lacks a part, or is known to differ).",
    ["outcome"],
)
INFLIGHT = Gauge(
    "pvbus_inflight_keys", "Keys whose reconciliation is running or waits for its commit.", ["service"]
)
DIRTY = Gauge("pvbus_dirty_keys", "Keys that wait for a reconciliation or are in one.", ["service"])
CERTIFICATE_EXPIRY = Gauge(
    "pvbus_serving_certificate_expiry_timestamp_seconds",
    "When the certificate of the package store's API expires, in seconds since 1970; 0 in other processes.",
)
PACKAGE_REQUESTS = Counter(
    "pvbus_package_requests_total", "Requests to the package store's API, by verb and code.", ["verb", "code"]
)
LAG = Gauge(
    "pvbus_consumer_lag_records", "Records that are not read yet, by partition.", ["topic", "partition"]
)
LEASES = Gauge("pvbus_leases", "Partitions that the service holds and has restored.", ["service"])
_LEASE = ["service", "partition"]
LEASE_HELD = Gauge(
    "pvbus_lease_held", "1 for each partition that the service holds, restored or not.", _LEASE
)
LEASE_LAG = Gauge(
    "pvbus_lease_lag_records", "Input records of a restored partition that are not read yet.", _LEASE
)
LEASE_DIRTY = Gauge(
    "pvbus_lease_dirty_keys", "Keys of a partition that wait for a reconciliation or are in one.", _LEASE
)
LEASE_PROGRESS = Gauge(
    "pvbus_lease_progress_seconds",
    "Time since the last progress of a partition, also while it is idle.",
    _LEASE,
)
LEASE_RESTORE = Gauge(
    "pvbus_lease_restore_ratio", "Share of a partition's tables that is read: 1 when it is restored.", _LEASE
)
MEASURED = (LAG, LEASE_HELD, LEASE_LAG, LEASE_DIRTY, LEASE_PROGRESS, LEASE_RESTORE)
"""The gauges that are cleared before each scrape: labels of lost leases must not stay."""

LOOP_STALL = Histogram(
    "pvbus_loop_stall_seconds",
    "How late the event loop ran a callback that is due five times a second: what everything else waited.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
ATTENTION = Gauge(
    "pvbus_attention_needed",
    "Objects that wait for a person: those with the condition AttentionNeeded, by kind.",
    ["kind"],
)
API_SERVER_FAILING = Gauge(
    "pvbus_api_server_failing_seconds",
    "Time since when the API server has answered no request, or refused the credentials; 0 while it answers.",
)
MISSING_RIGHTS = Gauge(
    "pvbus_missing_rights", "Rights on the API server that the service was refused and lacks.", ["service"]
)
WATCH_RESTARTS = Counter(
    "pvbus_watch_restarts_total",
    "Lists and watches started, and the errors before them, by reason.",
    ["reason"],
)
DEAD_LETTERS = Counter("pvbus_dead_letters_total", "Records that could not be decoded, by topic.", ["topic"])
STEPS = Counter(
    "pvbus_steps_total", "Transactions on the bus, by service and outcome.", ["service", "outcome"]
)
RECORDS_WRITTEN = Counter(
    "pvbus_records_written_total", "Records that were committed to the bus, by topic.", ["topic"]
)
KUBERNETES_EVENTS = Counter(
    "pvbus_kubernetes_events_total",
    "Kubernetes Events for people, by outcome: written, repeated (counted in an earlier one), dropped (by "
    "the limits), failed.",
    ["outcome"],
)
SINK_EVENTS = Counter(
    "pvbus_sink_events_total",
    "Events of the sink, by outcome: sent, retried (each try), dead_lettered, filtered.",
    ["outcome"],
)
SINK_UNSENT = Gauge("pvbus_sink_unsent_records", "Events that the sink has read and not sent yet.")
SINK_OLDEST = Gauge(
    "pvbus_sink_oldest_unsent_seconds",
    "Age of the oldest event that the sink has read and not sent; 0 for none.",
)
SINK_DELETED = Counter(
    "pvbus_sink_deleted_events_total",
    "Events that retention deleted before the sink sent them (on a Kafka, marks of transactions count, too).",
)
CONVERGENCE_SECONDS = Histogram(
    "pvbus_convergence_seconds",
    "Time from the start of the attempt that makes a PackageVariant ready to its written status.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
BUILD_INFO = Info("pvbus_build", "Version of the running program.")
BUILD_INFO.info({"version": __version__})

for _service in ALL_SERVICES:
    RECONCILE_SECONDS.labels(_service)
    MISSING_RIGHTS.labels(_service)
    for _outcome in OUTCOMES:
        RECONCILES.labels(_service, _outcome)
for _outcome in ("done", "transient", "permanent"):
    QUERIES.labels(_outcome)
for _effect in ("observe", "pull"):
    for _outcome in ("done", "transient", "conflict", "permanent"):
        SOURCE_READS.labels(_effect, _outcome)
for _program in ("ytt", "kbld", "helm"):
    for _outcome in ("done", "permanent"):
        PROGRAMS.labels(_program, _outcome)
for _effect in ("get", "list", "create", "update", "patch", "delete"):
    for _outcome in ("done", "transient", "conflict", "permanent"):
        EFFECTS.labels(_effect, _outcome)
for _outcome in ("written", "repeated", "dropped", "failed"):
    KUBERNETES_EVENTS.labels(_outcome)
for _outcome in ("sent", "retried", "dead_lettered", "filtered"):
    SINK_EVENTS.labels(_outcome)
