"""The dashboard is what its code says, and asks only for what there is."""

import json

import pytest
import yaml

from deploy.grafana import dashboard
from deploy.grafana.panels import ANNOTATIONS, ROWS
from tests.docs.blocks import ROOT
from tests.observability.expressions import (
    FOREIGN,
    label_names,
    metric_names,
    unknown_names,
)

RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"][0][
    "rules"
]
PANELS = [panel for row in ROWS for panel in row.panels]
EXPRESSIONS = sorted({expression for panel in PANELS for expression, _ in panel.queries})
ASKED_FOR = {
    "Pool by state",
    "Tokens by tier and state",
    "Tiers below the device",
    "Sessions by state",
    "Time to first token, warm",
    "Time to first token, cold",
    "Between tokens",
    "Queue",
    "Swap",
    "Evictions by policy",
    "KV per turn",
    "Reuse ratio",
    "Degradations",
    "Memory of the GPU",
    "How full and how busy a GPU is",
}


def test_the_file_is_what_the_code_writes():
    assert dashboard.PATH.read_text(encoding="utf-8") == dashboard.text()


def test_there_is_a_panel_for_all_that_was_asked_for():
    assert {panel.title for panel in PANELS} >= ASKED_FOR


def test_panels_have_their_own_numbers_and_places():
    panels = json.loads(dashboard.text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [cell for panel in panels for cell in cells_of(panel["gridPos"])]
    assert len(set(cells)) == len(cells), "two panels overlap"
    assert all(0 <= x < 24 for x, _ in cells)


def cells_of(place):
    columns = range(place["x"], place["x"] + place["w"])
    return [(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])]


def test_every_expression_names_only_what_the_server_tells(live):
    named = [*EXPRESSIONS, *(one.expression for one in ANNOTATIONS)]
    unknown = {one: names for one in named if (names := unknown_names(one, live))}
    assert unknown == {}


def test_a_renamed_metric_or_label_is_noticed(live):
    """Production-stack 989: the dashboard said "No data" after a metric got another name."""
    good = 'sum by (tier) (sessiond_kv_blocks{state="cached"}) / sum(rate(sessiond_x_total[5m]))'
    assert metric_names(good) == {"sessiond_kv_blocks", "sessiond_x_total"}
    assert label_names(good) == {"tier", "state"}
    assert unknown_names(good, live) == ["sessiond_x_total"]
    assert unknown_names("sum by (shelf) (sessiond_kv_blocks)", live) == ["shelf"]
    assert unknown_names('sessiond_kv_bytes{state="cached"}', live) == ["state"]


def test_n06_restarts_are_marked_and_the_runbook_is_linked():
    board = json.loads(dashboard.text())
    marked = {one["name"]: one["expr"] for one in board["annotations"]["list"]}
    assert "sessiond_engine_restarts_total" in marked["Engine restarted"]
    assert "process_start_time_seconds" in marked["Server started"]
    assert [link["url"] for link in board["links"]] == ["${runbook}"]
    linked = {panel.alert for panel in PANELS} - {""}
    assert linked <= {rule["alert"] for rule in RULES}
    urls = {link["url"] for panel in board["panels"] for link in panel.get("links", ())}
    assert urls == {f"${{runbook}}#{alert.lower()}" for alert in linked}


def test_rules_and_dashboard_begin_their_links_alike():
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert config["global"]["external_labels"] == {"runbook": dashboard.RUNBOOK}


@pytest.mark.asyncio(loop_scope="session")
async def test_prometheus_understands_every_annotation(watched):
    for one in ANNOTATIONS:
        assert await watched.prom.query(one.expression.replace("$instance", ".*")) == {}, one.title


@pytest.mark.asyncio(loop_scope="session")
async def test_prometheus_answers_every_expression_with_data(watched):
    for expression in EXPRESSIONS:
        now = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
        found = await watched.prom.query(now)
        assert found or metric_names(expression) & FOREIGN.keys(), expression


def test_the_provisioning_examples_are_yaml_of_grafana():
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((folder / "dashboards" / "sessiond.yml").read_text())["providers"]
    assert provider["options"]["path"]
