"""A statement with a list has few texts, however long the list is."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from sessiond.store.schema import turns
from sessiond.store.text_padding import padded
from tests.sql_texts import lists_of_odd_lengths
from tests.store.rows import kept, prompt, session, turn


@pytest.mark.parametrize(
    ("count", "length"), [(0, 0), (1, 1), (2, 4), (4, 4), (5, 16), (65, 256), (257, 512)]
)
def test_a_list_gets_longer_by_its_last_value(count, length):
    values = list(range(count))
    found = padded(values)
    assert (found[:count], set(found), len(found)) == (values, set(values), length)


def test_lists_of_up_to_a_thousand_have_nine_lengths():
    assert len({len(padded(range(count))) for count in range(1001)}) == 9


def test_a_dictionary_s_keys_are_a_list():
    assert padded({"a": 1, "b": 2}) == ["a", "b", "b", "b"]


@pytest.mark.parametrize("count", [2, 3, 5, 100])
@pytest.mark.parametrize("dialect", ["sqlite", "postgresql+psycopg"])
def test_what_is_not_padded_is_seen(count, dialect):
    wanted = sa.select(turns.c.id).where(turns.c.id.in_([str(one) for one in range(count)]))
    engine = sa.create_mock_engine(f"{dialect}://", lambda *_: None)
    options = {"render_postcompile": True}
    text = str(wanted.compile(dialect=engine.dialect, compile_kwargs=options))
    assert lists_of_odd_lengths(text) == [count]


async def test_closing_session_after_session_sends_few_texts(store):
    texts = set()

    def note(_connection, _cursor, text, *_):
        texts.add(text)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    for number in range(40):
        await _open_and_close(store, number)
    sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert len(texts) < 40


async def _open_and_close(store, number):
    name, turn_id, system_prefix = f"conv_{number}", f"resp_{number}", prompt(f"sys_{number}")
    begun = replace(turn(turn_id, session_id=name), prompt_id=system_prefix.id)
    await store.begin_turn(
        begun, session=session(name, prompt_id=system_prefix.id), prompt=system_prefix
    )
    await store.commit_turn(replace(kept(turn_id, session_id=name), prompt_id=system_prefix.id))
    await store.close_session("ann", name, now=10.0)
