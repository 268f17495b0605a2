"""The runbook has an entry for every alert, and names only what there is."""

import re
import shlex

import pytest
import typer
import yaml

from sessiond.__main__ import build_cli
from tests.docs.blocks import ROOT, table_column
from tests.observability.expressions import FOREIGN, OF_PROMETHEUS

COMMANDS = typer.main.get_command(build_cli())
FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
NAMES = [rule["alert"] for rule in RULES]
TEXT = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
CODE = set(re.findall(r"`([^`\n]+)`", TEXT)) | set(re.findall(r"^sessiond .*$", TEXT, re.MULTILINE))


def test_n06_every_alert_has_an_entry_and_every_entry_an_alert():
    assert set(ENTRIES) == set(NAMES)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_what_it_means_what_to_look_at_and_what_to_do(name):
    assert re.findall(r"^- \*\*(.+?)\*\*", ENTRIES[name], re.MULTILINE) == [
        "Means.",
        "Look at.",
        "Do.",
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_n06_an_alert_has_a_severity_and_leads_to_its_entry(rule):
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    url = f"{{{{ $externalLabels.runbook }}}}#{rule['alert'].lower()}"
    assert rule["annotations"]["runbook_url"] == url


def test_n06_there_is_an_alert_for_all_that_was_asked_for():
    assert set(NAMES) >= {
        "SessiondSlowFirstToken",
        "SessiondSlowTokens",
        "SessiondFailedTurns",
        "SessiondDatabaseAway",
        "SessiondTierErrors",
        "SessiondEngineHangs",
        "SessiondEngineRestarts",
        "SessiondServerRestarts",
        "SessiondGpuMemoryNearlyFull",
    }


def test_the_page_on_observability_lists_the_alerts():
    assert table_column("docs/observability.md", "## Prometheus") == NAMES


def test_every_metric_that_the_runbook_names_exists(live):
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in live} | set(live)
    named = {
        code for code in CODE if re.fullmatch(r"(?:sessiond|process)_\w+|vllm:\w+|DCGM\w+", code)
    }
    assert len(named) > 10
    assert named - families - FOREIGN.keys() - OF_PROMETHEUS.keys() == set()


def commands():
    return sorted(code for code in CODE if code.startswith("sessiond "))


@pytest.mark.parametrize("line", commands())
def test_every_command_in_the_runbook_is_one(line):
    command, words = COMMANDS, shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {flag for one in command.params for flag in one.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_every_setting_that_the_runbook_names_is_one_of_the_server():
    serve = COMMANDS.commands["serve"]
    known = {flag for one in serve.params for flag in one.opts} | {"--url"}
    assert {code for code in CODE if re.fullmatch(r"--[\w-]+", code)} <= known
