"""What a report of pip-audit means: skipping is told apart from being clean."""

import json

from tests.audit import verdict

CLEAN = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "Dependency not found"}
BAD = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


def report(*packages):
    return json.dumps({"dependencies": list(packages), "fixes": []})


def test_a_known_vulnerability_fails():
    said = verdict(report(CLEAN, BAD, SKIPPED))
    assert said.failed
    assert "c 2: CVE-1, fixed in 3" in said.text


def test_what_was_audited_is_told_beside_what_was_not():
    assert verdict(report(CLEAN, SKIPPED)).text == "dependency audit: 1 clean, 1 not audited"


def test_a_source_that_knows_nothing_is_no_clean_audit():
    said = verdict(report(SKIPPED, SKIPPED))
    assert (said.failed, "SKIPPED" in said.text) == (False, True)


def test_no_report_is_told_with_its_reason():
    for output in ("", "{}", "[]", "not JSON"):
        said = verdict(output, "Traceback\nConnectionError: no route to the advisories")
        assert not said.failed
        assert said.text == "dependency audit SKIPPED: ConnectionError: no route to the advisories"
