"""The dashboard is what Grafana reads: a schema of the fields that it uses of Grafana's classic JSON model.

Source: Grafana's documentation, "Dashboard JSON model"; its kind Dashboard, schemaVersion 39.
Fields beyond these are refused, as Grafana passes over what it does not know.
"""

import copy
import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from deploy import generate

SCHEMA = yaml.safe_load("""
$defs:
  strict: &strict {type: object, additionalProperties: false}
  source:
    <<: *strict
    required: [type, uid]
    properties:
      type: {const: prometheus}
      uid: {const: "${datasource}"}
  place:
    <<: *strict
    required: [x, y, w, h]
    properties:
      x: {type: integer, minimum: 0, maximum: 23}
      y: {type: integer, minimum: 0}
      w: {type: integer, minimum: 1, maximum: 24}
      h: {type: integer, minimum: 1}
  row:
    <<: *strict
    required: [id, type, title, collapsed, gridPos, panels]
    properties:
      id: {type: integer}
      type: {const: row}
      title: {type: string, minLength: 1}
      collapsed: {type: boolean}
      gridPos: {$ref: "#/$defs/place"}
      panels: {type: array, maxItems: 0}
  panel:
    <<: *strict
    required: [id, type, title, datasource, gridPos, fieldConfig, targets]
    properties:
      id: {type: integer}
      type: {enum: [timeseries, stat, gauge, table, heatmap]}
      title: {type: string, minLength: 1}
      description: {type: string}
      datasource: {$ref: "#/$defs/source"}
      gridPos: {$ref: "#/$defs/place"}
      options: {type: object}
      fieldConfig:
        <<: *strict
        required: [defaults, overrides]
        properties:
          defaults:
            <<: *strict
            properties:
              unit: {enum: [short, none, s, ms, bytes, decbytes, ops, reqps, wps, percent, percentunit]}
              min: {type: number}
              max: {type: number}
          overrides: {type: array}
      targets:
        type: array
        minItems: 1
        items:
          <<: *strict
          required: [refId, expr, datasource]
          properties:
            refId: {type: string, pattern: "^[A-Z]+$"}
            expr: {type: string, minLength: 1}
            legendFormat: {type: string}
            datasource: {$ref: "#/$defs/source"}
<<: *strict
required: [title, uid, schemaVersion, time, templating, panels]
properties:
  title: {type: string, minLength: 1}
  uid: {type: string, pattern: "^[A-Za-z0-9_-]{1,40}$"}
  schemaVersion: {type: integer, minimum: 36}
  tags: {type: array, items: {type: string}}
  refresh: {type: string, pattern: "^[0-9]+[smh]$"}
  time:
    <<: *strict
    required: [from, to]
    properties: {from: {type: string}, to: {type: string}}
  templating:
    <<: *strict
    required: [list]
    properties:
      list:
        type: array
        items:
          <<: *strict
          required: [name, type, query]
          properties: {name: {type: string}, type: {const: datasource}, query: {const: prometheus}}
  panels:
    type: array
    minItems: 1
    items:
      if: {properties: {type: {const: row}}}
      then: {$ref: "#/$defs/row"}
      else: {$ref: "#/$defs/panel"}
""")
DASHBOARD = json.loads((generate.FOLDER / "components/monitoring/pvbus.json").read_text())


def test_grafana_reads_the_dashboard() -> None:
    jsonschema.validate(DASHBOARD, SCHEMA)
    for panel in DASHBOARD["panels"]:
        refs = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(refs)) == len(refs), panel["title"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("panels", 1, "gridPos", "w"), 25),
        (("panels", 1, "targets", 0, "expression"), "up"),
        (("panels", 1, "type"), "graphs"),
        (("panels", 1, "targets"), []),
        (("templating", "list", 0, "type"), "prometheus"),
        (("schemaVersion",), "39"),
    ],
)
def test_what_grafana_does_not_read_is_seen(path: tuple[str | int, ...], value: object) -> None:
    changed: Any = copy.deepcopy(DASHBOARD)
    *parents, last = path
    node = changed
    for step in parents:
        node = node[step]
    node[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed, SCHEMA)
