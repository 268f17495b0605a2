"""What clients write is stored as it is, on either database, and what they ask for is only text."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.store.records import SessionChoice
from sessiond.store.schema import escaped, unescaped
from tests.store.rows import item, kept, prompt, session, turn

ODD = [
    "\0",
    "a\0b\0",
    "\x1a",
    "\x1a0\x1a1\0",
    "\x1a\0\x1a",
    "é中🎈",
    "'; DROP TABLE turns; --",
    "%s %(a)s :a",
]


@given(st.text(st.sampled_from("\0\x1a01a")))
def test_what_is_escaped_has_no_nul_and_comes_back(text):
    assert "\0" not in escaped(text)
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize("text", ODD)
async def test_any_text_is_read_as_it_was_written(store, text):
    said = replace(turn(), items=(replace(item("resp_1"), text=text),), request={"input": text})
    await store.begin_turn(said, session=session(), prompt=prompt(text=text))
    reply = replace(item("resp_1", role="assistant"), text=text)
    await store.commit_turn(replace(kept(), reply=reply))
    await store.set_metadata("ann", "conv_1", {"key": text})
    assert await store.reply_text("ann", "resp_1") == text
    page = await store.context_items("ann", "resp_1", limit=9, after=None, order="asc")
    assert [each.text for each in page.items] == [text, text]
    found = await store.find_session("ann", "conv_1")
    assert (found.prompt.text, found.metadata) == (text, {"key": text})
    assert (await store.find_turn("ann", "resp_1")).request == {"input": text}


@pytest.mark.parametrize("odd", [*ODD, "x" * 1000])
async def test_ids_that_cannot_be_are_ids_of_nothing(store, odd):
    await store.begin_turn(turn(), session=session(), prompt=prompt())
    await store.commit_turn(kept())
    looked_up = await asyncio.gather(
        store.find_session("ann", odd),
        store.find_turn("ann", odd),
        store.claim_session("ann", odd, 1.0),
        store.find_item("ann", "resp_1", odd),
        store.session_detail("ann", odd),
    )
    assert looked_up == [None] * 5
    assert not await store.close_session("ann", odd, 1.0)
    assert not await store.delete_turn("ann", odd, 1.0)
    assert await store.membership.taken([odd]) == []
    page = await store.context_items("ann", "resp_1", limit=9, after=odd, order="asc")
    assert page.items == ()
    assert await store.list_sessions(SessionChoice(user_id="ann"), limit=9, after=odd) == (
        (),
        False,
    )
