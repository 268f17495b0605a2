"""Clients that resend their history: what of it is stored is found and not computed again."""

import pytest

from sessiond.sessions.transcript import EMPTY, extended, of_prefixes, of_system_prefix, with_items
from tests.harness.service import ANN, BOB, ask, finish, items, settled


async def chat(world, *texts, caller=ANN, **fields):
    """A turn whose input is the whole history; the reply is added to it by the caller."""
    bound = await world.service.turns.bind_chat(caller, ask(*texts, **fields))
    turn = await world.service.turns.run(bound)
    return turn, await finish(turn)


async def grown(world, *texts, **fields):
    """A chat of these user messages, resent each time; its messages and its last turn."""
    history, turn, finished = [], None, None
    for text in texts:
        history.append(text)
        turn, finished = await chat(world, *history, **fields)
        history.append(("assistant", finished.text))
    return history, turn, finished


class TestDigests:
    def test_a_list_of_messages_is_what_the_context_of_it_is(self):
        said = items(("system", "s"), "a", ("assistant", "b"), "c")
        digests = of_prefixes(said)
        assert digests[0] == of_system_prefix("s", None) == of_system_prefix(None, "s")
        assert digests[-1] == with_items(of_system_prefix("s", None), said[1:])
        assert with_items(None, said) is None
        assert of_system_prefix(None, None) == EMPTY

    def test_where_texts_end_makes_a_difference(self):
        assert extended(EMPTY, "user", "ab") != extended(extended(EMPTY, "user", "a"), "user", "b")
        assert extended(EMPTY, "user", "ab") != extended(EMPTY, "usera", "b")

    def test_a_developer_who_opens_is_a_system(self):
        assert of_prefixes(items(("developer", "s"))) == of_prefixes(items(("system", "s")))
        later = of_prefixes(items("a", ("developer", "s")))
        assert later != of_prefixes(items("a", ("system", "s")))


async def test_a_resent_history_costs_only_what_is_new(world, engine):
    history, first, _ = await grown(world, "a", "b")
    known = len(await world.context(first.accepted.session_id))
    turn, finished = await chat(world, *history, "c")
    assert turn.accepted.session_id == first.accepted.session_id
    assert finished.usage.reused_tokens == known
    assert turn.accepted.previous_response_id == first.accepted.response_id
    session = turn.accepted.session_id
    assert await world.context(session) == engine.contexts[session]
    assert len((await world.service.inspector.page(ANN, 10, None)).sessions) == 1


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_system_message_is_part_of_what_is_found(world, role):
    _, first = await chat(world, (role, "be brief"), "a")
    reply = ("assistant", first.text)
    turn, finished = await chat(world, (role, "be brief"), "a", reply, "b")
    assert finished.usage.reused_tokens > 0
    assert turn.accepted.previous_response_id is not None
    other, finished = await chat(world, (role, "be verbose"), "a", reply, "b")
    assert other.accepted.previous_response_id is None
    assert finished.usage.reused_tokens == 0


async def test_another_reply_of_the_same_history_is_a_fork(world, engine):
    history, first, _ = await grown(world, "a", "b")
    again, _ = await chat(world, *history[:-1])
    assert again.accepted.session_id != first.accepted.session_id
    assert again.accepted.previous_response_id == first.accepted.previous_response_id
    assert engine.contexts[first.accepted.session_id] == await world.context(
        first.accepted.session_id
    )


async def test_a_history_that_was_changed_is_found_up_to_the_change(world):
    history, _, _ = await grown(world, "a", "b", "c")
    changed = [*history[:3], ("assistant", "what I never said"), *history[4:], "d"]
    turn, finished = await chat(world, *changed)
    found = await world.store.find_turn("ann", turn.accepted.previous_response_id)
    assert (await world.service.inspector.input_items(ANN, found.id)).items[0].text == "a"
    context = await world.context(turn.accepted.session_id)
    assert b"what I never said" in bytes(token for token in context if token < 256)
    assert finished.usage.reused_tokens > 0


async def test_a_conversation_of_the_responses_api_is_found_and_only_read(world, engine):
    first, said = await world.turn(ask("a", instructions="be brief"))
    session = first.accepted.session_id
    before = await world.context(session)
    turn, finished = await chat(world, ("system", "be brief"), "a", ("assistant", said.text), "b")
    assert turn.accepted.session_id != session
    assert finished.usage.reused_tokens == len(before)
    assert await world.context(session) == before == engine.contexts[session]
    view = await world.service.inspector.session(ANN, session)
    assert len({part.response_id for part in view.turns}) == 1
    on, _ = await world.turn(ask("c", previous_response_id=first.accepted.response_id))
    assert on.accepted.session_id == session


async def test_what_others_said_is_not_found(world):
    history, _, _ = await grown(world, "a", "b")
    turn, finished = await chat(world, *history, "c", caller=BOB)
    assert turn.accepted.previous_response_id is None
    assert finished.usage.reused_tokens == 0


async def test_what_was_deleted_is_not_found(world):
    history, turn, _ = await grown(world, "a", "b")
    await world.service.followers.forget(ANN, turn.accepted.response_id)
    shorter, _ = await chat(world, *history, "c")
    assert shorter.accepted.previous_response_id not in {None, turn.accepted.response_id}
    await world.service.conversations.close(ANN, turn.accepted.session_id)
    await world.service.conversations.close(ANN, shorter.accepted.session_id)
    none, _ = await chat(world, *history, "c")
    assert none.accepted.previous_response_id is None


async def test_after_other_instructions_a_context_is_not_taken_for_what_it_is_not(world):
    first, said = await world.turn(ask("a", instructions="be brief"))
    session = first.accepted.session_id
    second, answer = await world.turn(ask("b", conversation=session, instructions="be verbose"))
    history = ["a", ("assistant", said.text), "b", ("assistant", answer.text), "c"]
    turn, _ = await chat(world, ("system", "be brief"), *history)
    assert turn.accepted.previous_response_id == first.accepted.response_id
    turn, _ = await chat(world, ("system", "be verbose"), *history)
    assert turn.accepted.previous_response_id is None
    assert second


async def test_items_that_were_added_and_rewinds_are_seen(world):
    first, said = await world.turn(ask("a"))
    session = first.accepted.session_id
    await world.service.conversations.add_items(ANN, session, items("b", ("assistant", "c")))
    known = ["a", ("assistant", said.text), "b", ("assistant", "c")]
    turn, _ = await chat(world, *known, "d")
    record = await world.store.find_session("ann", session)
    assert turn.accepted.previous_response_id == record.tip_id
    await world.service.conversations.reset(ANN, session, first.accepted.response_id)
    second, answer = await world.turn(ask("e", conversation=session))
    turn, _ = await chat(world, "a", ("assistant", said.text), "e", ("assistant", answer.text), "f")
    assert turn.accepted.previous_response_id == second.accepted.response_id


async def test_two_at_once_on_one_history_are_two_sessions(world, engine):
    history, first, _ = await grown(world, "a")
    engine.auto = False
    one = await world.service.turns.run(
        await world.service.turns.bind_chat(ANN, ask(*history, "b"))
    )
    two = await world.service.turns.run(
        await world.service.turns.bind_chat(ANN, ask(*history, "c"))
    )
    assert one.accepted.session_id == first.accepted.session_id != two.accepted.session_id
    for turn in (one, two):
        engine.say(turn.accepted.response_id, "x")
        engine.finish(turn.accepted.response_id)
    ends = await settled(finish(one), finish(two))
    assert [end.status for end in ends] == ["completed", "completed"]


async def test_what_is_not_stored_is_not_found_either(world, engine):
    _, said = await chat(world, "a", store=False)
    turn, finished = await chat(world, "a", ("assistant", said.text), "b")
    assert turn.accepted.previous_response_id is None
    assert finished.status == "completed"


async def test_long_histories_are_looked_up_in_parts(world, monkeypatch):
    monkeypatch.setattr("sessiond.store.turns._DIGESTS", 3)
    texts = [text for _ in range(6) for text in ("a", ("assistant", "x"))]
    turn, said = await chat(world, *texts, "last")
    again, _ = await chat(world, *texts, "last", ("assistant", said.text), "more")
    assert again.accepted.previous_response_id == turn.accepted.response_id
    longer = [*texts, "last", ("assistant", said.text), *texts, "more"]
    found, _ = await chat(world, *longer)
    assert found.accepted.previous_response_id == turn.accepted.response_id
    changed, _ = await chat(world, *texts[:-1], ("assistant", "y"), "last")
    assert changed.accepted.previous_response_id is None
