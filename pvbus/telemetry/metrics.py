"""Prometheus metrics: prefix `pvbus_`, base units, closed label sets, known values start at 0."""

from prometheus_client import Counter, Gauge, Histogram, Info

from pvbus import __version__

SERVICES = ("ingest", "unroll", "render", "inject", "conditions")
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

RECONCILES = Counter("pvbus_reconcile_total", "Reconciliations.", ["service", "outcome"])
RECONCILE_SECONDS = Histogram(
    "pvbus_reconcile_duration_seconds",
    "From the first look at a key to its committed outcome.",
    ["service"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
EFFECTS = Counter("pvbus_effects_total", "Calls to the API server.", ["effect", "outcome"])
EVALUATIONS = Counter("pvbus_evaluations_total", "Target or template evaluations.", ["service"])
INFLIGHT = Gauge("pvbus_inflight_keys", "Keys that wait for an effect or a step.", ["service"])
DIRTY = Gauge("pvbus_dirty_keys", "Keys that wait for a look.", ["service"])
LAG = Gauge("pvbus_consumer_lag_records", "Records not read yet.", ["topic", "partition"])
CLAIMS = Gauge("pvbus_claims", "Claims held and restored.", ["service"])
_CLAIM = ["service", "partition"]
CLAIM_HELD = Gauge("pvbus_claim_held", "1 for each claim held, restored or not.", _CLAIM)
CLAIM_LAG = Gauge("pvbus_claim_lag_records", "Records of the inputs not read yet, once restored.", _CLAIM)
CLAIM_DIRTY = Gauge("pvbus_claim_dirty_keys", "Keys that wait, or are being worked on.", _CLAIM)
CLAIM_PROGRESS = Gauge("pvbus_claim_progress_seconds", "Since the claim last got on.", _CLAIM)
CLAIM_RESTORE = Gauge("pvbus_claim_restore_ratio", "Share of the tables that is read; 1 is restored.", _CLAIM)
MEASURED = (LAG, CLAIM_HELD, CLAIM_LAG, CLAIM_DIRTY, CLAIM_PROGRESS, CLAIM_RESTORE)
"""What is measured anew for each scrape: labels of claims that went away must not stay."""

WATCH_RESTARTS = Counter("pvbus_watch_restarts_total", "Lists and watches begun.", ["reason"])
DEAD_LETTERS = Counter("pvbus_dead_letters_total", "Records that could not be decoded.", ["topic"])
STEPS = Counter("pvbus_steps_total", "Steps on the bus.", ["service", "outcome"])
RECORDS_WRITTEN = Counter("pvbus_records_written_total", "Records of committed steps.", ["topic"])
CONVERGENCE_SECONDS = Histogram(
    "pvbus_convergence_seconds",
    "From the change that caused it to the condition published.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
BUILD_INFO = Info("pvbus_build", "The running program.")
BUILD_INFO.info({"version": __version__})

for _service in SERVICES:
    RECONCILE_SECONDS.labels(_service)
    for _outcome in OUTCOMES:
        RECONCILES.labels(_service, _outcome)
for _effect in ("get", "list", "create", "update", "patch", "delete"):
    for _outcome in ("done", "transient", "conflict", "permanent"):
        EFFECTS.labels(_effect, _outcome)
