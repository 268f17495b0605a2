"""Reads fenced code blocks and tables out of Markdown."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_blocks(path, language):
    """The code blocks of one language, in order."""
    return _blocks((ROOT / path).read_text(encoding="utf-8"), language)


def code_blocks_of_section(path, heading, language):
    """Those under a heading of the second level."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return _blocks(text.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0], language)


def table_column(path, heading, column=0):
    """One column of the first table under a heading, without backticks."""
    text = (ROOT / path).read_text(encoding="utf-8")
    section = text.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [row.strip("|").split(" | ")[column].strip(" `") for row in rows]


def table_rows(path, heading):
    """All rows of the first table under a heading, without backticks around a cell."""
    columns = [table_column(path, heading, i) for i in range(_width(path, heading))]
    return list(zip(*columns, strict=True))


def _blocks(text, language):
    return [code for kind, code in _FENCE.findall(text) if kind == language]


def _width(path, heading):
    text = (ROOT / path).read_text(encoding="utf-8")
    section = text.split(f"\n{heading}\n", 1)[1]
    header = next(line for line in section.splitlines() if line.startswith("|"))
    return len(header.strip("|").split(" | "))
