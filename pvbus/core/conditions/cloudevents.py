"""The envelope of public events: CloudEvents 1.0 in the Kafka binding's binary mode.

The record value is the event's data as JSON; the attributes are record headers, named `ce_` and the
attribute. A consumer needs no library, and drops duplicates by `ce_id`.
"""

from collections.abc import Mapping

from pvbus.core.records import ConditionEvent

CONDITION_CHANGED = "dev.pvbus.condition.changed.v1"

ATTRIBUTES: Mapping[str, str] = {
    "ce_specversion": "Version of CloudEvents: 1.0.",
    "ce_id": "Unique id of the change. An event that is sent again has the same id.",
    "ce_source": "The installation that sent the event, as a URI reference.",
    "ce_type": f"Type of the event: `{CONDITION_CHANGED}`.",
    "ce_subject": "The object: `<Kind>/<namespace>/<name>/<condition type>`.",
    "ce_time": "When the event was made (RFC 3339); the condition has the time of its last transition.",
    "content-type": "Type of the value: application/json.",
}


def condition_headers(event: ConditionEvent, *, event_id: str, source: str) -> tuple[tuple[str, bytes], ...]:
    """Return the record headers of a condition event, in the order of ATTRIBUTES.

    event_id: unique per change; a repeated step sends the same id.
    """
    values = {
        "ce_specversion": "1.0",
        "ce_id": event_id,
        "ce_source": source,
        "ce_type": CONDITION_CHANGED,
        "ce_subject": f"{event.kind}/{event.namespace}/{event.name}/{event.condition.type}",
        "ce_time": event.time or event.condition.last_transition_time or "",
        "content-type": "application/json",
    }
    return tuple((name, values[name].encode()) for name in ATTRIBUTES if values[name])
