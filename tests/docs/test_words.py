"""Words that stay out of documentation, help, messages and code: the field has better ones."""

import re

import pytest

from tests.docs.blocks import ROOT

BANNED = (
    "seat",
    "crew",
    "litter",
    "foresight",
    "halving",
    "guesses",
    "rung",
    "hurry",
    "census",
    "tally",
    "watchers",
    "beginnings",
    "dead pages",
    "calm clock",
    "allowed is",
    "is told",
    "whoever",
)
# also as part of a name: `_take_seat`, `DeadPages`
_PATTERN = re.compile(
    "|".join(rf"(?<![a-z]){word.replace(' ', '[_ ]?')}s?(?![a-z])" for word in BANNED),
    re.IGNORECASE,
)
_CAPITALS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_KINDS = {".py", ".md", ".toml", ".yml", ".js", ".html", ".css", ".json", ".c", ".h", ".mako"}
_FOLDERS = (
    "sessiond",
    "engine",
    "policies",
    "migrations",
    "loadtest",
    "deploy",
    "docs",
    "benchmarks",
)
_PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "Makefile",
    "pyproject.toml",
)


def read_files():
    """What people read: the product with its messages and help, and the documentation."""
    for folder in _FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in _KINDS and path.name != "LOG.md":  # a log keeps its words
                yield path
    yield from (ROOT / page for page in _PAGES)


def banned_in(text):
    """The banned words of a text, by line."""
    return [
        (number, found[0])
        for number, line in enumerate(text.splitlines(), 1)
        for found in _PATTERN.finditer(_CAPITALS.sub(" ", line))
    ]


def test_no_banned_word_is_written():
    found = {
        str(path.relative_to(ROOT)): words
        for path in read_files()
        if (words := banned_in(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize("word", BANNED)
def test_a_banned_word_is_found_in_prose_and_in_names(word):
    assert banned_in(f"One {word} more.")
    assert banned_in(f"old_{word.replace(' ', '_')}_name = Old{word.title().replace(' ', '')}()")


@pytest.mark.parametrize("text", ["a crewed ship", "tallying", "the wrung cloth", "seating"])
def test_parts_of_other_words_pass(text):
    assert banned_in(text) == []
