"""Writes the dashboard that Grafana reads: `python -m deploy.grafana.dashboard`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.grafana.panels import ANNOTATIONS, ROWS, Annotation, Panel, Row

PATH = Path(__file__).parent / "sessiond.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RUNBOOK = "https://docs.example/sessiond/runbook.md"  # as in prometheus.yml
_COLUMNS, _HEIGHTS = 24, {"stat": 4, "timeseries": 8}

Json = dict[str, Any]


def dashboard() -> Json:
    """The dashboard: the same for the same panels."""
    return {
        "title": "sessiond",
        "uid": "sessiond",
        "description": "Written by deploy/grafana/dashboard.py.",
        "tags": ["llm", "kv-cache"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_datasource(), _instance(), _runbook()]},
        "links": [_link("Runbook", "${runbook}")],
        "annotations": {"list": [_annotation(one) for one in ANNOTATIONS]},
        "panels": list(_placed()),
    }


def text() -> str:
    """The dashboard as it is in the file."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }


def _instance() -> Json:
    query = "label_values(sessiond_websocket_connections, instance)"
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "instance"},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
        "hide": 0,
    }


def _runbook() -> Json:
    """Where docs/runbook.md is published: a constant of the dashboard's settings."""
    value = {"text": RUNBOOK, "value": RUNBOOK}
    return {
        "name": "runbook",
        "label": "Runbook",
        "type": "constant",
        "query": RUNBOOK,
        "current": value,
        "options": [{**value, "selected": True}],
        "hide": 2,
    }


def _link(title: str, url: str) -> Json:
    return {"title": title, "type": "link", "icon": "doc", "url": url, "targetBlank": True}


def _annotation(annotation: Annotation) -> Json:
    return {
        "name": annotation.title,
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": annotation.color,
        "expr": annotation.expression,
        "step": "60s",
        "titleFormat": annotation.title,
        "textFormat": "{{instance}}",
    }


def _placed() -> Iterator[Json]:
    """Panels from left to right, rows from top to bottom, with their numbers."""
    top, number = 0, 1
    for row in ROWS:
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place, "panels": []}
        number, top = number + 1, top + 1
        for place, panel in _places(row, top):
            yield _panel(panel, number, place)
            number += 1
            top = max(top, place["y"] + place["h"])


def _places(row: Row, top: int) -> Iterator[tuple[Json, Panel]]:
    left = 0
    for panel in row.panels:
        height = _HEIGHTS[panel.kind]
        if left + panel.width > _COLUMNS:
            left, top = 0, top + height
        yield {"h": height, "w": panel.width, "x": left, "y": top}, panel
        left += panel.width


def _panel(panel: Panel, number: int, place: Json) -> Json:
    defaults: Json = {"unit": panel.unit, "min": 0, "custom": _style(panel)}
    if panel.threshold is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.threshold}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "links": [_link(panel.alert, f"${{runbook}}#{panel.alert.lower()}")] if panel.alert else [],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "range": panel.kind != "stat",
                "instant": panel.kind == "stat",
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _style(panel: Panel) -> Json:
    if panel.kind != "timeseries":
        return {}
    stacking = "normal" if panel.stacked else "none"
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 5,
        "showPoints": "never",
        "stacking": {"mode": stacking, "group": "A"},
    }


def _options(panel: Panel) -> Json:
    if panel.kind == "timeseries":
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
