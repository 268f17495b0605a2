"""What SECURITY.md says is shown by a test names one that there is."""

import re

from tests.docs.blocks import ROOT

ROW = re.compile(r"^\| (?:a |the |dependencies)[^|]* \| .* \| ([^|]*) \|$", re.MULTILINE)


def test_every_defence_names_tests_that_there_are():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    defended = text.partition("## What is defended")[2].partition("## What is not")[0]
    rows = ROW.findall(defended)
    assert len(rows) > 15
    for shown_by in rows:
        named = re.findall(r"`([^`]+)`", shown_by)
        assert named, shown_by
        for path in named:
            assert (ROOT / "tests" / path).exists(), path
