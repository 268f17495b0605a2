"""Engines and servers that were lost: the ids in SQL bring every context back."""

import asyncio
from itertools import count

import msgspec
import pytest

from engine.ipc.messages import SetContext
from sessiond.errors import RequestError
from tests.harness.service import ANN, World, ask, finish, settled, until
from tests.sessions.fake_engine import FakeEngine


async def test_an_engine_that_dies_ends_its_turns_and_the_next_one_is_right(world, engine):
    turn, _ = await world.turn(ask("hi"))
    session = turn.accepted.session_id
    before = await world.context(session)
    engine.auto = False
    running = [await world.begin(ask("a", conversation=session))]
    running += [await world.begin(ask("x")) for _ in range(3)]
    for turn in running:
        engine.begin(turn.accepted.response_id)
    engine.lose()
    for turn in running:
        finished = await finish(turn)
        assert (finished.status, finished.error.code) == ("failed", "engine_restarted")
    engine.auto = True
    for turn in running:
        _, finished = await world.turn(ask("b", conversation=turn.accepted.session_id))
        assert finished.status == "completed"
        context = await world.context(turn.accepted.session_id)
        assert context == engine.contexts[turn.accepted.session_id]
    assert (await world.context(session))[: len(before)] == before


async def test_a_turn_that_meets_a_starting_engine_waits_for_it(world, engine):
    turn, _ = await world.turn(ask("hi"))
    engine.lose(back=False)
    begun = asyncio.create_task(world.turn(ask("a", conversation=turn.accepted.session_id)))
    await until(world.service.runner.begun_ids)
    engine.come_back()
    _, finished = await begun
    assert finished.status == "completed"
    assert len(engine.sent(SetContext)) == 2


async def test_an_engine_that_is_lost_while_the_ids_are_read_gets_the_context_again(
    world, engine, monkeypatch
):
    turn, _ = await world.turn(ask("hi"))
    session = turn.accepted.session_id
    engine.lose()
    read = world.store.context

    async def lose_meanwhile(*args):
        stored = await read(*args)
        engine.lose()
        monkeypatch.undo()
        return stored

    monkeypatch.setattr(world.store, "context", lose_meanwhile)
    _, finished = await world.turn(ask("a", conversation=session))
    assert finished.status == "completed"
    assert await world.context(session) == engine.contexts[session]


async def test_a_submit_that_finds_no_engine_is_tried_again(world, engine):
    engine.fail_submits = 2
    _, finished = await world.turn(ask("hi"))
    assert finished.status == "completed"


async def test_an_engine_that_stays_away_is_told_and_leaves_the_session_free(url, engine):
    world = await World.start(url, engine, engine_ready_timeout_s=1.0)
    turn, _ = await world.turn(ask("hi"))
    session = turn.accepted.session_id
    engine.lose(back=False)
    with pytest.raises(RequestError) as error:
        await world.begin(ask("a", conversation=session))
    assert (error.value.code, error.value.status) == ("engine_restarted", 500)
    engine.come_back()
    await world.turn(ask("b", conversation=session))
    detail = await world.store.session_detail("ann", session, limit=1000)
    assert [turn.status for turn in detail.others] == ["failed"]
    await world.stop()


async def test_a_context_that_only_the_engine_lost_is_set_again(world, engine):
    turn, _ = await world.turn(ask("hi"))
    engine.auto = False
    failing = await world.begin(ask("a", conversation=turn.accepted.session_id))
    engine.fail(failing.accepted.response_id, "engine_restarted")
    await finish(failing)
    engine.auto = True
    await world.turn(ask("b", conversation=turn.accepted.session_id))
    assert len(engine.sent(SetContext)) == 2


class TestServerRestart:
    async def test_sessions_of_an_earlier_run_go_on_at_their_last_response(self, url, engine):
        first = await World.start(url, engine)
        turn, _ = await first.turn(ask("hi", instructions="be brief"))
        session, tip = turn.accepted.session_id, turn.accepted.response_id
        before = await first.context(session)
        await first.stop()

        second = await World.start(url, FakeEngine(), count(1000))
        turn, finished = await second.turn(ask("a", previous_response_id=tip))
        assert turn.accepted.session_id == session
        assert turn.accepted.instructions == "be brief"
        assert (await second.context(session))[: len(before)] == before
        assert finished.usage.recomputed_tokens == len(before)
        assert second.engine.sent(SetContext)[0].ids == before
        await second.stop()

    async def test_turns_that_ran_are_failed_and_in_no_context(self, url, engine):
        first = await World.start(url, engine)
        turn, _ = await first.turn(ask("hi"))
        session = turn.accepted.session_id
        before = await first.context(session)
        engine.auto = False
        cut = await first.begin(ask("a", conversation=session))
        row = await first.store.find_turn("ann", cut.accepted.response_id)
        assert row.status == "running"
        await first.stop()

        second = await World.start(url, FakeEngine(), count(1000))
        view = await second.service.inspector.response(ANN, cut.accepted.response_id)
        assert view.finished.status == "failed"
        assert view.finished.error.code == "engine_restarted"
        assert await second.context(session) == before
        with pytest.raises(RequestError) as error:
            await second.bind(ask("b", previous_response_id=cut.accepted.response_id))
        assert error.value.code == "previous_response_not_found"
        await second.turn(ask("b", conversation=session))
        await second.stop()

    async def test_ids_of_another_model_are_not_continued(self, url, engine):
        first = await World.start(url, engine)
        turn, _ = await first.turn(ask("hi"))
        await first.stop()
        for other in ({"model": "other"}, {"vocab_size": 9}):
            info = msgspec.structs.replace(engine.info, **other)
            second = await World.start(url, FakeEngine(info), count(1000))
            with pytest.raises(RequestError) as error:
                await second.bind(ask("a", conversation=turn.accepted.session_id))
            assert error.value.code == "model_not_found"
            await second.stop()

    async def test_ids_outlast_another_device_or_number_format(self, url, engine):
        first = await World.start(url, engine)
        turn, _ = await first.turn(ask("hi"))
        await first.stop()
        info = msgspec.structs.replace(engine.info, dtype="bfloat16", fingerprint="other")
        second = await World.start(url, FakeEngine(info), count(1000))
        await second.turn(ask("a", conversation=turn.accepted.session_id))
        await second.stop()


async def test_many_sessions_at_once_do_not_wait_for_each_other(world, engine):
    turns = await settled(*(world.turn(ask(str(i)), lane=str(i)) for i in range(50)))
    assert {finished.status for _, finished in turns} == {"completed"}
    for turn, _ in turns:
        session = turn.accepted.session_id
        assert await world.context(session) == engine.contexts[session]
