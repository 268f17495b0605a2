"""No SQL text depends on the length of a list: see `sessiond/store/text_padding.py`."""

import re

import pytest
import sqlalchemy as sa

from sessiond.store.text_padding import padded

_LIST = re.compile(r"IN \((?P<list>[?%][^\n]*?)\)(?=[\s)]|$)")
_PARAMETER = re.compile(r"\?|%\(\w+\)s")


def lists_of_odd_lengths(text):
    """Lengths of the lists of parameters in a statement that no padded list has."""
    lengths = [len(_PARAMETER.findall(found["list"])) for found in _LIST.finditer(text)]
    return [length for length in lengths if len(padded(range(length))) != length]


@pytest.fixture(scope="session")
def odd_texts():
    """Statements with such lists, as they come."""
    found = []

    def look(_connection, _cursor, text, _parameters, _context, _many):
        own = "pg_catalog." not in text  # a schema that is read is read once
        if own and " IN (" in text and lists_of_odd_lengths(text):
            found.append(text)

    sa.event.listen(sa.Engine, "before_cursor_execute", look)
    yield found
    sa.event.remove(sa.Engine, "before_cursor_execute", look)


@pytest.fixture(autouse=True)
def _few_texts(odd_texts):
    """Each such statement fails the test that sent it."""
    odd_texts.clear()
    yield
    assert odd_texts == []
