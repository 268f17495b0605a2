"""The alert rules: what Prometheus' own tool says of them, and that they name what there is."""

import subprocess

import pytest
import yaml

from tests.docs.blocks import ROOT
from tests.observability.expressions import unknown_names

pytestmark = pytest.mark.second

FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]


def promtool(programs, *words):
    done = subprocess.run(
        [programs.promtool, *words], check=False, cwd=FOLDER, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(programs, words):
    promtool(programs, *words)


def test_every_alert_is_seen_to_fire():
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    fired = {
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_only_what_the_server_tells(rule, live):
    assert unknown_names(rule["expr"], live) == []


@pytest.mark.asyncio(loop_scope="session")
async def test_nothing_is_wrong_with_a_server_that_is_well(watched):
    for rule in RULES:
        if rule["alert"] != "SessiondPoolNearlyFull":  # the small pool of the test is full
            assert await watched.prom.query(rule["expr"]) == {}, rule["alert"]
