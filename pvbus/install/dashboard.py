"""The Grafana dashboard: the questions of a person on duty, from the top."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from pvbus.install.objects import NAME, Object, new

COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 8, 8
"""In Grafana's grid, which is 24 wide."""
GRAFANA_SCHEMA = 39
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Query(NamedTuple):
    """One line or value of a panel.

    expression: the query, in PromQL
    legend: its name in the legend
    """

    expression: str
    legend: str


class Panel(NamedTuple):
    """One panel of the dashboard.

    title: its title
    unit: Grafana's name of the unit
    description: the text behind its (i)
    queries: what it shows
    """

    title: str
    unit: str
    description: str
    queries: tuple[Query, ...]


class Question(NamedTuple):
    """One row of the dashboard: what a person on duty asks, and the panels that answer it."""

    title: str
    panels: tuple[Panel, ...]


def _rates(metric: str, *labels: str) -> Query:
    """Return how fast a counter grows, one line for each value of the labels."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return Query(f"sum by ({', '.join(labels)}) (rate({metric}[$__rate_interval]))", legend)


def _quantiles(metric: str, by: str) -> tuple[Query, ...]:
    legend = f" {{{{{by}}}}}" if by else ""
    labels = f"le, {by}" if by else "le"
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))",
            f"{name}{legend}",
        )
        for name, share in (("median", 0.5), ("95 %", 0.95))
    )


QUESTIONS = (
    Question(
        "Does everything run?",
        (
            Panel(
                "Partitions with a worker",
                "short",
                "Each service has all of them, or part of the fleet stands still.",
                (Query("sum by (service) (pvbus_lease_held)", "{{service}}"),),
            ),
            Panel(
                "Restore",
                "percentunit",
                "The partition that has read the least of its tables.",
                (Query("min by (service) (pvbus_lease_restore_ratio)", "{{service}}"),),
            ),
            Panel(
                "Workers by version",
                "short",
                "Two versions only while an upgrade goes on.",
                (Query("count by (version) (pvbus_build_info)", "{{version}}"),),
            ),
            Panel(
                "Certificate of the package store",
                "s",
                "Until it expires, of the replica whose certificate expires first.",
                (Query("min(pvbus_serving_certificate_expiry_timestamp_seconds > 0) - time()", "left"),),
            ),
        ),
    ),
    Question(
        "Is anything behind?",
        (
            Panel(
                "Unread records",
                "short",
                "What changed in the cluster and was not looked at yet.",
                (Query("sum by (service) (pvbus_lease_lag_records)", "{{service}}"),),
            ),
            Panel(
                "Dirty keys",
                "short",
                "Variants and sets that wait for a decision, or are in one.",
                (Query("sum by (service) (pvbus_lease_dirty_keys)", "{{service}}"),),
            ),
            Panel(
                "Longest time without progress",
                "s",
                "Grows while a partition is idle; with unread records it stands still.",
                (Query("max by (service) (pvbus_lease_progress_seconds)", "{{service}}"),),
            ),
            Panel(
                "Keys in flight",
                "short",
                "Decisions that run or wait for their commit.",
                (Query("sum by (service) (pvbus_inflight_keys)", "{{service}}"),),
            ),
        ),
    ),
    Question(
        "How long does a change take?",
        (
            Panel(
                "From attempt to status",
                "s",
                "How long a variant takes, the package store included.",
                _quantiles("pvbus_convergence_seconds", ""),
            ),
            Panel(
                "Time of a decision",
                "s",
                "With its calls to the API server and its step on the bus.",
                _quantiles("pvbus_reconcile_duration_seconds", "service"),
            ),
        ),
    ),
    Question(
        "What waits for a person?",
        (
            Panel(
                "Waits for a person",
                "short",
                "Objects with the condition AttentionNeeded: `pvbus conditions --not-ready` says what to do.",
                (Query("sum by (kind) (pvbus_attention_needed)", "{{kind}}"),),
            ),
            Panel(
                "Decisions by outcome",
                "ops",
                "`permanent`, `failed` and `defect` need a person.",
                (_rates("pvbus_reconcile_total", "outcome"),),
            ),
            Panel(
                "Missing rights",
                "short",
                "What a service was refused and lacks; its /readyz names each.",
                (Query("max by (service) (pvbus_missing_rights)", "{{service}}"),),
            ),
            Panel(
                "Dead letters",
                "short",
                "Records that could not be decoded: something else writes to the topics.",
                (Query("sum by (topic) (increase(pvbus_dead_letters_total[1h]))", "{{topic}}"),),
            ),
            Panel(
                "Second opinions on expressions",
                "ops",
                "`disputed`: cel-python differs; the set's condition ExpressionDisputed has both answers.",
                (_rates("pvbus_second_opinions_total", "outcome"),),
            ),
        ),
    ),
    Question(
        "Do the others answer?",
        (
            Panel(
                "API server lost",
                "s",
                "How long a worker has had no answer, or a refusal of its login; its /readyz says why.",
                (Query("max by (instance) (pvbus_api_server_failing_seconds)", "{{instance}}"),),
            ),
            Panel(
                "Calls that failed",
                "ops",
                "`conflict` is usual under load; `permanent` is a refusal, such as a missing right.",
                (
                    Query(
                        "sum by (effect, outcome) "
                        '(rate(pvbus_effects_total{outcome!="done"}[$__rate_interval]))',
                        "{{effect}} {{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Lists and watches",
                "ops",
                "Begun, and ended by an error.",
                (_rates("pvbus_watch_restarts_total", "reason"),),
            ),
            Panel(
                "Steps on the bus",
                "ops",
                "Transactions; those of unknown outcome restore a partition.",
                (_rates("pvbus_steps_total", "service", "outcome"),),
            ),
            Panel(
                "Requests to the package store",
                "reqps",
                "By verb and code, as an aggregated API; 503: it cannot ask kube-apiserver.",
                (_rates("pvbus_package_requests_total", "verb", "code"),),
            ),
            Panel(
                "Sources of packages",
                "ops",
                "Reads of registries and git, and programs of templates, by outcome: with `transient` and "
                "`permanent` packages wait.",
                (
                    _rates("pvbus_source_reads_total", "effect", "outcome"),
                    _rates("pvbus_programs_total", "program", "outcome"),
                ),
            ),
            Panel(
                "Queries to Prometheus",
                "ops",
                "For the checks of rollouts, by outcome: with `transient` and `permanent` these checks wait.",
                (_rates("pvbus_queries_total", "outcome"),),
            ),
            Panel(
                "Kubernetes Events by outcome",
                "short",
                "For people. `dropped` are left out by the limits; `failed` were refused.",
                (
                    Query(
                        "sum by (outcome) (increase(pvbus_kubernetes_events_total[$__rate_interval]))",
                        "{{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Webhook sink: events by outcome",
                "ops",
                "`retried`: each try; `dead_lettered`: in pvbus.dlq; `deleted`: lost to retention.",
                (
                    _rates("pvbus_sink_events_total", "outcome"),
                    Query("sum(rate(pvbus_sink_deleted_events_total[$__rate_interval]))", "deleted"),
                ),
            ),
            Panel(
                "Webhook sink: unsent events",
                "short",
                "Read and not sent yet: they wait for the receiver.",
                (Query("sum(pvbus_sink_unsent_records)", "events"),),
            ),
            Panel(
                "Webhook sink: oldest unsent event",
                "s",
                "While it grows, the receiver takes nothing, or fails one object's events.",
                (Query("max(pvbus_sink_oldest_unsent_seconds)", "age"),),
            ),
        ),
    ),
    Question(
        "What does it cost?",
        (
            Panel(
                "Calls to the API server",
                "ops",
                "Writes and reads by controllers; a converged fleet makes none.",
                (_rates("pvbus_effects_total", "effect"),),
            ),
            Panel(
                "Records written",
                "wps",
                "By topic.",
                (_rates("pvbus_records_written_total", "topic"),),
            ),
            Panel(
                "Evaluations",
                "ops",
                "Targets (unroll) and templates (render).",
                (_rates("pvbus_evaluations_total", "service"),),
            ),
        ),
    ),
)


def dashboard() -> Object:
    """Return the dashboard as Grafana imports it."""
    return {
        "title": NAME,
        "uid": NAME,
        "schemaVersion": GRAFANA_SCHEMA,
        "tags": [NAME],
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_laid_out(), 1)],
    }


def _laid_out() -> Iterator[Object]:
    """Yield each question as a row, and its panels below it."""
    top = 0
    for question in QUESTIONS:
        spot = {"x": 0, "y": top, "w": COLUMNS * PANEL_WIDTH, "h": 1}
        yield {"type": "row", "title": question.title, "collapsed": False, "gridPos": spot, "panels": []}
        for number, panel in enumerate(question.panels):
            row, column = divmod(number, COLUMNS)
            yield _panel(panel, column * PANEL_WIDTH, top + 1 + row * PANEL_HEIGHT)
        top += 1 + -(-len(question.panels) // COLUMNS) * PANEL_HEIGHT


def _panel(panel: Panel, x: int, y: int) -> Object:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": PANEL_WIDTH, "h": PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "expr": query.expression,
                "legendFormat": query.legend,
                "datasource": _SOURCE,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def config_map(namespace: str) -> Object:
    """Return the dashboard as the ConfigMap that Grafana's sidecar looks for."""
    found = new("v1", "ConfigMap", f"{NAME}-dashboard", namespace)
    found["metadata"]["labels"]["grafana_dashboard"] = "1"
    return {**found, "data": {f"{NAME}.json": json.dumps(dashboard(), indent=1) + "\n"}}
