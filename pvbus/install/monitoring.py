"""What Prometheus is to read and when it is to alert: for prometheus-operator.

Each alert names what a person does about it. Expressions have no metric but those of
`pvbus.telemetry.metrics` and Prometheus' own `up`.
"""

from typing import NamedTuple

from pvbus.core.kernel.topics import PARTITIONS, SERVICES
from pvbus.install.objects import NAME, PART_OF, PORT_NAME, Object, new

_API = "monitoring.coreos.com/v1"
SCRAPE_SECONDS = 30


class Alert(NamedTuple):
    """One alert.

    name: its name
    expression: the condition, in PromQL
    seconds: how long the expression must hold
    severity: the label by which people are called
    summary: what is wrong
    action: what a person does about it
    """

    name: str
    expression: str
    seconds: int
    severity: str
    summary: str
    action: str


EXPIRY_DAYS_MIN = 14
"""The days left of the package store's certificate below which there is an alert. One that the store makes
itself, and those of cert-manager, are renewed earlier: a renewal that has failed so late does not succeed by
itself."""

ALERTS = (
    Alert(
        "PvbusNoWorker",
        " or ".join(
            [
                f"sum by (service) (pvbus_lease_held) < {PARTITIONS}",
                *(f'absent(pvbus_lease_held{{service="{service}"}})' for service in SERVICES),
            ]
        ),
        300,
        "critical",
        "Some partitions of {{ $labels.service }} have no worker: what they hold stands still.",
        "See the pods of the service and their logs; `pvbus lag --partitions` names the partitions.",
    ),
    Alert(
        "PvbusGone",
        "absent(pvbus_build_info)",
        300,
        "critical",
        "No worker of pvbus is seen.",
        "See the pods, the ServiceMonitor and the NetworkPolicy pvbus-metrics.",
    ),
    Alert(
        "PvbusStuck",
        "max by (service, partition) (pvbus_lease_progress_seconds) > 300 and on (service, partition) "
        "max by (service, partition) (pvbus_lease_lag_records) > 0",
        300,
        "critical",
        "Partition {{ $labels.partition }} of {{ $labels.service }} stands still with unread records.",
        "See the log of its worker, which `pvbus lag --partitions` names.",
    ),
    Alert(
        "PvbusBehind",
        "max by (topic) (sum by (topic, instance) (pvbus_consumer_lag_records)) > 10000",
        900,
        "warning",
        "The readers of {{ $labels.topic }} are behind for a quarter of an hour.",
        "Add workers of the service that owns it, up to the number of partitions.",
    ),
    Alert(
        "PvbusDefect",
        'sum by (service) (increase(pvbus_reconcile_total{outcome="defect"}[15m])) > 0',
        0,
        "warning",
        "A decision of {{ $labels.service }} fails because of a bug.",
        "Report it with the log; the condition of the object has the reason InternalError.",
    ),
    Alert(
        "PvbusRefused",
        'sum by (effect) (increase(pvbus_effects_total{outcome="permanent"}[15m])) > 10',
        900,
        "warning",
        "The API server refuses to {{ $labels.effect }}.",
        "Run `pvbus doctor`: it says which right is missing; else `pvbus conditions --not-ready`.",
    ),
    Alert(
        "PvbusAttentionNeeded",
        "sum by (kind) (pvbus_attention_needed) > 0",
        3600,
        "warning",
        "{{ $value }} {{ $labels.kind }}s wait for a person for an hour.",
        "Run `pvbus conditions --not-ready`: each condition AttentionNeeded says what to do.",
    ),
    Alert(
        "PvbusApiServerLost",
        "max(pvbus_api_server_failing_seconds) > 60",
        0,
        "critical",
        "A worker cannot reach the API server, or the API server refuses its credentials.",
        "Its `/readyz` and its log say since when, why, and what to check; run `pvbus doctor`.",
    ),
    Alert(
        "PvbusMissingRights",
        "max by (service) (pvbus_missing_rights) > 0",
        300,
        "warning",
        "{{ $labels.service }} lacks rights on the API server.",
        "The `/readyz` and the log of its workers name each; `pvbus doctor` prints what grants them.",
    ),
    Alert(
        "PvbusApiServerTrouble",
        'sum(rate(pvbus_effects_total{outcome="transient"}[10m])) '
        "> 0.2 * sum(rate(pvbus_effects_total[10m]))",
        600,
        "warning",
        "A fifth of all calls to the API server fail.",
        "See the API server's health and its limits of priority and fairness.",
    ),
    Alert(
        "PvbusWatchesFail",
        'sum(increase(pvbus_watch_restarts_total{reason="error"}[15m])) > 30',
        900,
        "warning",
        "Watches fail again and again: changes of the cluster are noticed late.",
        "See the log of ingest; run `pvbus doctor` for its rights.",
    ),
    Alert(
        "PvbusDeadLetters",
        "sum by (topic) (increase(pvbus_dead_letters_total[1h])) > 0",
        0,
        "warning",
        "A record of {{ $labels.topic }} cannot be decoded.",
        "Something else writes to the topic: see `pvbus topics pvbus.dlq` and take its right away.",
    ),
    Alert(
        "PvbusStepsFail",
        'sum by (service) (increase(pvbus_steps_total{outcome!="done"}[15m])) > 30',
        900,
        "warning",
        "Transactions of {{ $labels.service }} on the bus fail.",
        "See the brokers; `pvbus topics --check` compares the topics.",
    ),
    Alert(
        "PvbusSlow",
        "histogram_quantile(0.9, sum by (le) (rate(pvbus_convergence_seconds_bucket[30m]))) > 60",
        1800,
        "warning",
        "One of ten variants takes more than a minute from its attempt to its written status.",
        "See the package store: pipelines and pushes take most of the time.",
    ),
    Alert(
        "PvbusLoopStalls",
        "sum by (instance) (increase(pvbus_loop_stall_seconds_count[15m])) - "
        'sum by (instance) (increase(pvbus_loop_stall_seconds_bucket{le=~"1|1.0"}[15m])) > 2.5',
        0,
        "warning",
        "{{ $labels.instance }} answered nothing for more than a second, several times in 15 minutes.",
        "See its log: the lines of a stall have the code in which it stood, and its computing time. Without "
        "computing time it waits for a disk; otherwise report it with the objects that it worked on.",
    ),
    Alert(
        "PvbusCertificateExpires",
        f"min(pvbus_serving_certificate_expiry_timestamp_seconds > 0) - time() < {EXPIRY_DAYS_MIN * 86_400}",
        600,
        "critical",
        "The certificate of the package store expires in {{ $value | humanizeDuration }}: then no package "
        "can be read or written.",
        "See who renews it, and whether the pods have the new Secret; `pvbus doctor` looks at its authority.",
    ),
)


def service_monitor(namespace: str) -> Object:
    monitor = new(_API, "ServiceMonitor", NAME, namespace)
    # honorLabels: the label `service` is ours and says ingest, not the name of the Service.
    endpoint = {"port": PORT_NAME, "interval": f"{SCRAPE_SECONDS}s", "honorLabels": True}
    spec = {"selector": {"matchLabels": dict(PART_OF)}, "jobLabel": "app.kubernetes.io/component"}
    return {**monitor, "spec": {**spec, "endpoints": [endpoint]}}


def rule_groups(runbooks: str = "") -> list[Object]:
    """Return the alerts as a rule file of Prometheus has them.

    runbooks: the address of the page with a heading for each alert; "" leaves their links out
    """
    return [{"name": NAME, "rules": [_rule(alert, runbooks) for alert in ALERTS]}]


def prometheus_rule(namespace: str, runbooks: str = "") -> Object:
    return {**new(_API, "PrometheusRule", NAME, namespace), "spec": {"groups": rule_groups(runbooks)}}


def _rule(alert: Alert, runbooks: str) -> Object:
    rule = {"alert": alert.name, "expr": alert.expression}
    if alert.seconds:
        rule["for"] = f"{alert.seconds}s"
    return {
        **rule,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.action,
            **({"runbook_url": f"{runbooks}#{alert.name.lower()}"} if runbooks else {}),
        },
    }
