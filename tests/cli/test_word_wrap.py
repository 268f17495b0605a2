import re

import pytest

from sessiond.cli.chat_screen import WordWrap


def seen(written):
    """What a terminal shows: an erased word is gone, and the spaces before it can't be seen."""
    erased = re.compile(r"([^\n]*)\x1b\[(\d+)G\x1b\[K")
    while found := erased.search(written):
        kept = found[1][: int(found[2]) - 1]
        written = written[: found.start()] + kept + written[found.end() :]
    return "\n".join(line.rstrip() for line in written.split("\n"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one two three", "one two\nthree"),
        ("one two thr\nee", "one two\nthr\nee"),
        ("    a\n  bc", "    a\n  bc"),
        ("onetwothreefour five", "onetwothr\neefour\nfive"),
        ("一二三四五六", "一二三四\n五六"),
        ("abcdefgh一二", "abcdefgh\n一二"),
        ("exactly-9 x", "exactly-9\nx"),
        ("exactly8 x", "exactly8\nx"),
        ("a\tb", "a       b"),
        ("ab cd                  ef", "ab cd\nef"),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 100])
def test_u01_no_word_is_split_at_the_edge(text, shown, size):
    wrap = WordWrap()
    parts = [wrap.feed(text[start : start + size], 9) for start in range(0, len(text), size)]
    assert seen("".join(parts)).replace("\t", "       ") == shown


def test_nothing_is_held_back():
    wrap = WordWrap()
    assert [wrap.feed(part, 80) for part in ("co", "unt", "ing ", "one")] == [
        "co",
        "unt",
        "ing ",
        "one",
    ]
