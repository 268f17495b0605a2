"""How much of a stored context some engine has computed."""

from dataclasses import replace

import pytest

from sessiond.domain import TurnUsage
from sessiond.store.records import StoredContext
from tests.store.rows import kept, prompt, session, turn

PROMPT, INPUT = 2, 2


async def keep(store, turn_id, parent_id, *, reply, usage):
    first = parent_id is None
    await store.begin_turn(
        turn(turn_id, parent_id),
        session=session() if first else None,
        prompt=prompt() if first else None,
    )
    await store.commit_turn(replace(kept(turn_id, parent_id, ids=reply), usage=usage))


@pytest.mark.parametrize(
    ("reply", "output_tokens", "fed"),
    [
        ((5, 6, 9, 9), 3, 2),  # 5, 6 and a stop token were drawn; what is owed was not fed
        ((5, 6, 7, 9, 9), 3, 2),  # at its limit the last token was not fed
        ((9, 9), 1, 0),
        ((), 0, 0),  # only prefilled
    ],
)
async def test_a_turn_computes_its_input_and_the_reply_but_what_is_still_to_be_fed(
    store, reply, output_tokens, fed
):
    usage = TurnUsage(new_tokens=4, output_tokens=output_tokens)
    await keep(store, "resp_1", None, reply=reply, usage=usage)
    context = await store.context("ann", "sys_1", "resp_1")
    assert context == StoredContext(ids=[1, 2, 3, 4, *reply], computed=PROMPT + INPUT + fed)


async def test_ids_that_no_engine_worked_on_are_not_computed_until_a_turn_follows(store):
    usage = TurnUsage(new_tokens=4, output_tokens=2)
    await keep(store, "resp_1", None, reply=(5, 9), usage=usage)
    await keep(store, "items", "resp_1", reply=(), usage=TurnUsage())
    assert (await store.context("ann", "sys_1", "items")).computed == PROMPT + INPUT + 1
    await keep(store, "resp_2", "items", reply=(5, 9), usage=usage)
    context = await store.context("ann", "sys_1", "resp_2")
    assert context.computed == len(context.ids) - 1


async def test_a_front_without_a_turn_is_not_computed(store):
    await store.create_session(session(), prompt())
    assert await store.context("ann", "sys_1", None) == StoredContext(ids=[1, 2], computed=0)
