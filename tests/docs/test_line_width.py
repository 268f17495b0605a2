"""Text of the documentation wraps at 120 columns; tables, code and headings do not wrap."""

import re

import pytest

from tests.docs.blocks import ROOT
from tests.docs.test_names_of_code import READMES

WIDTH = 120
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/LOG.md"]
PAGES += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
PAGES += READMES
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_UNWRAPPED = ("|", "#", "![", "    ")


def too_long(text):
    lines = _FENCE.sub("", text).splitlines()
    return [line for line in lines if len(line) > WIDTH and not line.startswith(_UNWRAPPED)]


@pytest.mark.parametrize("page", PAGES)
def test_text_wraps(page):
    assert too_long((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_line_that_is_too_long_is_found():
    long = "word " * 30
    assert too_long(f"short\n{long}\n| {long} |\n```console\n{long}\n```\n") == [long]
