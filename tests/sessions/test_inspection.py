"""What operators and clients are shown."""

import msgspec
import pytest

from sessiond.domain import BlockCounts, ByteCounts, PageRow, SessionUsage
from sessiond.errors import RequestError
from tests.harness.service import ANN, SOCKET, ask, finish


async def test_a_session_shows_its_turns_and_what_it_holds(world, engine):
    turn, first = await world.turn(ask("hi", instructions="be brief"))
    session = turn.accepted.session_id
    engine.auto = False
    lost = await world.begin(ask("lost", conversation=session))
    lost.cancel(keep=False)
    await finish(lost)
    engine.auto = True
    await world.turn(ask("more", conversation=session))
    view = await world.service.inspector.session(ANN, session, include_page_table=True)
    context = await world.context(session)
    assert (view.user, view.model, view.state, view.tier) == ("ann", "echo", "idle", "device")
    assert (view.policy, view.retention, view.priority, view.fidelity) == (
        "none",
        "release",
        "normal",
        "exact",
    )
    assert view.tokens_total == view.tokens_kept == len(context)
    kept = [part for part in view.turns if part.kept]
    assert [(part.role, part.status) for part in kept] == [
        ("system", "completed"),
        ("user", "completed"),
        ("assistant", "completed"),
        ("user", "completed"),
        ("assistant", "completed"),
    ]
    assert sum(part.tokens for part in kept) == len(context)
    assert [part.start for part in kept] == [
        sum(part.tokens for part in kept[:index]) for index in range(5)
    ]
    assert bytes(context[kept[2].start :][:6]).decode() == first.text
    (gone,) = [part for part in view.turns if not part.kept]
    assert (gone.response_id, gone.status) == (lost.accepted.response_id, "cancelled")
    blocks = -(-len(context) // 16)
    assert view.blocks == BlockCounts(device=blocks)
    assert view.kv_bytes == ByteCounts(device=blocks * 16 * world.engine.info.kv_bytes_per_token)
    assert view.page_table[0] == PageRow(
        block=7, first=0, last=15, base=0, references=1, hashed=True
    )
    assert view.usage.turns == 3
    assert view.last_active_at > view.created_at
    assert msgspec.json.decode(msgspec.json.encode(view))["blocks"]["device"] == blocks


async def test_a_name_that_no_session_has_is_told_as_it_was_given(world):
    with pytest.raises(RequestError, match="there is no conversation 'notes'"):
        await world.service.inspector.session(ANN, "notes")


async def test_places_in_a_fork_with_another_front_are_those_of_its_context(world):
    turn, _ = await world.turn(ask("hi"))
    session, tip = turn.accepted.session_id, turn.accepted.response_id
    await world.turn(ask("a", conversation=session))
    turn, _ = await world.turn(ask("b", previous_response_id=tip, instructions="longer " * 9))
    view = await world.service.inspector.session(ANN, turn.accepted.session_id)
    context = await world.context(turn.accepted.session_id)
    for part in view.turns:
        if part.role == "user":
            assert context[part.start] == 258
    assert view.turns[-1].start + view.turns[-1].tokens == len(context)


async def test_states_follow_the_session(world, engine):
    made = await world.service.openings.create(ANN, (), {})

    async def state():
        return (await world.service.inspector.session(ANN, made.id)).state

    assert await state() == "new"
    engine.auto = False
    turn = await world.begin(ask("hi", conversation=made.id))
    assert await state() == "running"
    turn.cancel(keep=False)
    await finish(turn)
    assert await state() == "new"
    engine.auto = True
    await world.turn(ask("hi", conversation=made.id))
    assert await state() == "idle"
    engine.lose()
    assert await state() == "cold"
    await world.turn(ask("hi", conversation=made.id))
    await world.service.housekeeping.detach(SOCKET)
    assert await state() == "cold"


async def test_an_engine_that_is_away_hides_no_session(world, engine):
    turn, _ = await world.turn(ask("hi"))
    engine.go_away()
    view = await world.service.inspector.session(ANN, turn.accepted.session_id)
    assert view.blocks == BlockCounts()


async def test_sessions_are_listed_latest_activity_first(world):
    sessions = [(await world.turn(ask(text)))[0].accepted.session_id for text in "abc"]
    await world.turn(ask("more", conversation=sessions[0]))
    expected = [sessions[0], sessions[2], sessions[1]]
    first = await world.service.inspector.page(ANN, 2, None)
    assert [view.id for view in first.sessions] == expected[:2]
    assert first.has_more
    second = await world.service.inspector.page(ANN, 2, first.sessions[-1].id)
    assert [view.id for view in second.sessions] == expected[2:]
    assert not second.has_more
    assert first.sessions[0].usage.turns == 2
    assert first.sessions[0].turns == ()


async def test_usage_sums_all_turns(world):
    turn, first = await world.turn(ask("hi"))
    _, second = await world.turn(ask("a", conversation=turn.accepted.session_id))
    view = await world.service.inspector.session(ANN, turn.accepted.session_id)
    assert view.usage == SessionUsage(
        turns=2,
        input_tokens=first.usage.input_tokens + second.usage.input_tokens,
        cached_tokens=second.usage.cached_tokens,
        output_tokens=12,
    )


async def test_a_response_is_read_back_as_it_was_told(world, engine):
    request = ask(
        "hi",
        instructions="be brief",
        temperature=0.5,
        top_k=3,
        stop=("x", "y"),
        max_output_tokens=9,
        truncation="auto",
        metadata={"a": "b"},
    )
    turn, finished = await world.turn(request)
    view = await world.service.inspector.response(ANN, turn.accepted.response_id)
    assert view.finished == finished
    assert view.finished_at >= view.accepted.created_at
    told = turn.accepted
    assert (view.accepted.message_id, view.accepted.model) == (told.message_id, told.model)
    assert view.accepted.instructions == "be brief"
    stored = view.accepted.request
    for name in ("temperature", "top_k", "stop", "max_output_tokens", "truncation", "metadata"):
        assert getattr(stored, name) == getattr(request, name), name
    engine.auto = False
    turn = await world.begin(ask("b", conversation=told.session_id))
    view = await world.service.inspector.response(ANN, turn.accepted.response_id)
    assert view.finished is None
