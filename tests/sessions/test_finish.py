"""Every way in which a turn ends early, and what the session is afterwards."""

import asyncio

import pytest

from engine.ipc.messages import CancelTurn, ReleaseContext, TurnWaiting
from sessiond.domain import SessionWaiting, TextDelta, TurnBegun, TurnFinished, TurnQueued
from sessiond.errors import RequestError
from sessiond.store.errors import StoreError
from tests.harness.service import (
    ANN,
    BOB,
    SOCKET,
    World,
    ask,
    entries,
    finish,
    rendered,
    settled,
    until,
)
from tests.sessions.talking import OTHER, speaking, talk

__all__ = ["talk"]


class TestCancel:
    async def test_kept_it_leaves_exactly_what_was_said_and_the_end_of_turn(
        self, world, engine, talk
    ):
        session, _, before = talk
        turn = await speaking(world, engine, conversation=session)
        await world.service.followers.cancel(
            ANN, turn.accepted.response_id, attachment=SOCKET, keep=True
        )
        finished = await finish(turn)
        assert (finished.status, finished.reason) == ("incomplete", "cancelled")
        after = before + rendered(("user", "a"), ("assistant", "half"))
        assert await world.context(session) == after == engine.contexts[session]

    async def test_not_kept_it_leaves_the_tip_where_it_was(self, world, engine, talk):
        session, tip, before = talk
        turn = await speaking(world, engine, conversation=session)
        await world.service.followers.cancel(
            ANN, turn.accepted.response_id, attachment=SOCKET, keep=False
        )
        finished = await finish(turn)
        assert (finished.status, finished.reason) == ("incomplete", "cancelled")
        assert await world.context(session) == before == engine.contexts[session]
        with pytest.raises(RequestError) as error:
            await world.bind(ask("x", previous_response_id=turn.accepted.response_id))
        assert error.value.code == "previous_response_not_found"
        view = await world.service.inspector.response(ANN, turn.accepted.response_id)
        assert view.finished.reason == "cancelled"
        assert view.finished.text == "half"
        engine.auto = True
        turn, _ = await world.turn(ask("b", previous_response_id=tip))
        assert turn.accepted.session_id == session

    async def test_t04_cancelled_while_queued_it_leaves_the_session_free(self, world, engine, talk):
        session, _, before = talk
        turn = await world.begin(ask("a", conversation=session))  # the engine does not begin it
        turn.cancel(keep=False)
        assert [type(entry) for entry in await entries(turn)] == [TurnFinished]
        engine.auto = True
        await world.turn(ask("b", conversation=session))
        assert (await world.context(session))[: len(before)] == before

    async def test_twice_or_after_the_end_it_ends_once(self, world, engine, talk):
        turn = await speaking(world, engine, conversation=talk[0])
        for _ in range(2):
            await world.service.followers.cancel(
                ANN, turn.accepted.response_id, attachment=SOCKET, keep=True
            )
        endings = [entry for entry in await entries(turn) if isinstance(entry, TurnFinished)]
        assert len(endings) == 1
        await world.service.followers.cancel(
            ANN, turn.accepted.response_id, attachment=SOCKET, keep=True
        )
        turn.cancel(keep=False)
        assert len(engine.sent(CancelTurn)) == 1

    async def test_without_an_id_it_means_what_the_socket_has_begun(self, world, engine, talk):
        world.service.housekeeping.attach(OTHER)
        turn = await speaking(world, engine, conversation=talk[0])
        other = await speaking(world, engine, attachment=OTHER)
        await world.service.followers.cancel(ANN, None, attachment=SOCKET, keep=True)
        assert (await finish(turn)).reason == "cancelled"
        assert engine.running() == [other.accepted.response_id]

    async def test_without_an_id_it_reaches_a_turn_that_is_about_to_begin(self, world, engine):
        engine.auto = False
        bound = await world.bind(ask("a"))
        await world.service.followers.cancel(ANN, None, attachment=SOCKET, keep=False)
        assert (await finish(await world.service.turns.run(bound))).reason == "cancelled"

    async def test_of_an_unknown_or_foreign_turn_it_is_refused(self, world, engine, talk):
        turn = await speaking(world, engine, conversation=talk[0])
        for caller, response in ((ANN, "resp_none"), (BOB, turn.accepted.response_id)):
            with pytest.raises(RequestError) as error:
                await world.service.followers.cancel(caller, response, attachment=None, keep=True)
            assert error.value.code == "previous_response_not_found"
        assert engine.running() == [turn.accepted.response_id]

    async def test_right_after_the_frame_it_reaches_the_turn_once_that_has_begun(
        self, world, engine, talk
    ):
        bound = await world.bind(ask("a", conversation=talk[0]))
        await world.service.followers.cancel(ANN, bound.response_id, attachment=SOCKET, keep=False)
        turn = await world.service.turns.run(bound)
        assert (await finish(turn)).reason == "cancelled"


class TestDisconnect:
    async def test_the_last_socket_takes_its_turn_with_it_and_the_kv_is_given_back(
        self, world, engine, talk
    ):
        session, _, before = talk
        turn = await speaking(world, engine, conversation=session)
        await world.service.housekeeping.detach(SOCKET)
        assert engine.sent(CancelTurn)[-1] == CancelTurn(
            turn=turn.accepted.response_id, keep=False, reason="disconnected"
        )
        assert engine.cached[session] == 0
        assert engine.contexts[session] == before
        row = await world.store.find_turn("ann", turn.accepted.response_id)
        assert row.status == "cancelled"
        view = await world.service.inspector.session(ANN, session)
        assert (view.state, view.tier) == ("cold", "none")
        engine.auto = True
        world.service.housekeeping.attach(OTHER)
        _, finished = await world.turn(ask("b", conversation=session), attachment=OTHER)
        assert finished.usage.recomputed_tokens == len(before)

    async def test_while_another_socket_holds_the_session_the_turn_goes_on(
        self, world, engine, talk
    ):
        session = talk[0]
        world.service.housekeeping.attach(OTHER)
        bound = await world.bind(ask("x", conversation=session), attachment=OTHER)
        await world.service.turns.drop(bound)
        turn = await speaking(world, engine, conversation=session)
        await world.service.housekeeping.detach(SOCKET)
        assert engine.running() == [turn.accepted.response_id]
        engine.finish(turn.accepted.response_id)
        assert (await finish(turn)).status == "completed"
        assert engine.sent(ReleaseContext) == []
        await world.service.housekeeping.detach(OTHER)
        assert engine.cached[session] == 0

    async def test_a_frame_that_waits_in_its_lane_goes_with_the_socket(self, world, engine, talk):
        session, _, before = talk
        await speaking(world, engine, conversation=session)
        waiting = await world.bind(ask("b", conversation=session))
        run = asyncio.create_task(world.service.turns.run(waiting))
        await asyncio.sleep(0)
        await world.service.housekeeping.detach(SOCKET)
        assert waiting.ended.is_set()
        (refused,) = await settled(run)
        assert refused.code == "internal_error"
        assert await world.context(session) == before
        assert waiting.response_id not in engine.turns

    async def test_between_frame_and_created_the_turn_is_taken_back(self, world, engine, talk):
        session, _, before = talk
        bound = await world.bind(ask("a", conversation=session))
        run = asyncio.create_task(world.service.turns.run(bound))
        await asyncio.sleep(0)
        run.cancel()
        await settled(run)
        await world.service.housekeeping.detach(SOCKET)
        assert bound.ended.is_set()
        assert engine.running() == []
        assert await world.context(session) == before

    async def test_an_http_reader_that_leaves_ends_its_turn(self, world, engine, talk):
        turn = await world.begin(ask("a", conversation=talk[0]), attachment=None)
        engine.begin(turn.accepted.response_id)
        engine.say(turn.accepted.response_id, "x")
        told = turn.entries()
        assert await anext(told) == TurnBegun()
        await told.aclose()
        await until(lambda: not engine.running())
        assert engine.sent(CancelTurn)[-1].reason == "disconnected"

    async def test_the_reader_of_an_http_turn_may_be_cut_before_it_has_begun(self, world, engine):
        engine.auto = False
        bound = await world.bind(ask("a"), attachment=None)
        run = asyncio.create_task(world.service.turns.run(bound))
        await asyncio.sleep(0)
        run.cancel()
        await settled(run)
        await asyncio.wait_for(bound.ended.wait(), 60)
        assert engine.running() == []


class TestBounds:
    async def test_a_deadline_ends_the_turn_with_what_it_has(self, world, engine, talk):
        engine.auto, engine.opening = False, "half"
        turn = await world.begin(ask("a", conversation=talk[0], deadline_ms=30))
        finished = await finish(turn)
        assert (finished.reason, finished.text) == ("deadline", "half")

    async def test_so_does_the_servers_own_bound(self, url, engine):
        world = await World.start(url, engine, turn_timeout_s=0.02)
        engine.auto, engine.opening = False, "half"
        turn = await world.begin(ask("a"))
        assert (await finish(turn)).reason == "deadline"
        await world.stop()

    async def test_a_turn_that_does_not_start_in_time_fails(self, url, engine):
        world = await World.start(url, engine, queue_timeout_s=0.02)
        engine.auto = False
        finished = await finish(await world.begin(ask("a")))
        assert (finished.status, finished.error.code) == ("failed", "queue_timeout")
        engine.opening = "half"
        started = await world.begin(ask("a"))
        engine.opening = None
        waits = await world.begin(ask("b"))
        # the bound of a turn that started earlier has passed, too: it is not under it
        assert (await finish(waits)).error.code == "queue_timeout"
        engine.finish(started.accepted.response_id)
        assert (await finish(started)).status == "completed"
        await world.stop()

    async def test_a_turn_that_waits_is_told_to_be_queued(self, world, engine):
        engine.auto = False
        turn = await world.begin(ask("a"))
        told = turn.entries()
        assert await anext(told) == TurnQueued()
        engine.begin(turn.accepted.response_id)
        engine.finish(turn.accepted.response_id)
        assert [type(entry) async for entry in told] == [TurnBegun, TurnFinished]

    async def test_m01_a_waiting_client_sees_what_for_and_its_position(self, world, engine):
        engine.auto = False
        turn = await world.begin(ask("a"))
        events = engine.turns[turn.accepted.response_id]
        events.put(TurnWaiting(turn=events.turn, cause="slot", position=3))
        told = turn.entries()
        assert await anext(told) == TurnQueued()
        first = await anext(told)
        assert (first.cause, first.position) == ("slot", 3)
        assert (first.session_id, first.response_id) == (
            turn.accepted.session_id,
            turn.accepted.response_id,
        )
        events.put(TurnWaiting(turn=events.turn, cause="blocks", position=1))
        later = await anext(told)
        assert (later.cause, later.position) == ("blocks", 1)
        assert later.since_ms >= first.since_ms >= 0
        engine.begin(turn.accepted.response_id)
        events.put(TurnWaiting(turn=events.turn, cause="slot", position=1))  # preempted
        engine.finish(turn.accepted.response_id)
        rest = [type(entry) async for entry in told]
        assert rest == [TurnBegun, SessionWaiting, TurnFinished]

    async def test_a_turn_that_starts_at_once_is_not_told_to_wait(self, world, engine):
        engine.auto = False
        turn = await world.begin(ask("a"))
        events = engine.turns[turn.accepted.response_id]
        events.put(TurnWaiting(turn=events.turn, cause="slot", position=1))
        engine.begin(turn.accepted.response_id)
        engine.finish(turn.accepted.response_id)
        assert [type(entry) for entry in await entries(turn)] == [TurnBegun, TurnFinished]

    async def test_a_slow_reader_finds_the_deltas_merged(self, world, engine):
        engine.auto = False
        turn = await speaking(world, engine)
        for _ in range(100):
            engine.say(turn.accepted.response_id, "y")
        engine.finish(turn.accepted.response_id)
        await until(turn.ended.is_set)
        told = await entries(turn)
        assert len(told) == 3
        assert told[1] == TextDelta(text="half" + 100 * "y")


class TestClose:
    async def test_a_running_turn_is_cancelled_and_those_behind_it_are_refused(
        self, world, engine, talk
    ):
        session = talk[0]
        turn = await speaking(world, engine, conversation=session)
        waiting = await world.bind(ask("b", conversation=session))
        run = asyncio.create_task(world.service.turns.run(waiting))
        await asyncio.sleep(0)
        await settled(
            world.service.conversations.close(ANN, session),
            world.service.conversations.close(ANN, session),
        )
        assert (await finish(turn)).reason == "cancelled"
        (refused,) = await settled(run)
        assert refused.code == "conversation_not_found"
        assert session not in engine.contexts
        view = await world.service.inspector.session(ANN, session)
        assert view.state == "closed"
        with pytest.raises(RequestError) as error:
            await world.bind(ask("c", conversation=session))
        assert error.value.code == "conversation_not_found"

    async def test_a_turn_that_holds_its_place_and_has_not_begun_is_refused(self, world, talk):
        bound = await world.bind(ask("a", conversation=talk[0]))
        await world.service.conversations.close(ANN, talk[0])
        with pytest.raises(RequestError) as error:
            await world.service.turns.run(bound)
        assert error.value.code == "conversation_not_found"


class TestDrain:
    async def test_running_turns_end_and_new_ones_are_refused(self, world, engine, talk):
        turn = await speaking(world, engine, conversation=talk[0])
        bound = await world.bind(ask("b"))
        draining = asyncio.create_task(world.service.drain())
        await asyncio.sleep(0)
        for refused in (world.bind(ask("c")), world.service.turns.run(bound)):
            with pytest.raises(RequestError) as error:
                await refused
            assert (error.value.code, error.value.status) == ("draining", 503)
        assert not draining.done()
        engine.finish(turn.accepted.response_id)
        await draining
        assert (await finish(turn)).status == "completed"

    async def test_those_that_take_too_long_keep_what_they_have(self, url, engine):
        world = await World.start(url, engine, drain_timeout_s=0.01)
        engine.auto, engine.opening = False, "half"
        turn = await world.begin(ask("a"))
        await world.service.drain()
        finished = await finish(turn)
        assert (finished.status, finished.reason, finished.text) == (
            "incomplete",
            "cancelled",
            "half",
        )
        await world.stop()

    async def test_who_waits_for_a_turn_that_the_stop_cuts_is_let_go(self, url, engine):
        world = await World.start(url, engine)
        engine.auto = False
        turn = await speaking(world, engine)
        await world.stop()
        async with asyncio.timeout(60):
            await turn.ended.wait()


async def test_a_fault_of_ours_ends_the_turn_and_leaves_the_session_usable(
    world, engine, talk, monkeypatch
):
    session, _, before = talk
    turn = await speaking(world, engine, conversation=session)

    def break_once(*args, **kwargs):
        monkeypatch.undo()
        raise ZeroDivisionError("as the test wants")

    monkeypatch.setattr("sessiond.sessions.stream.end_of", break_once)
    engine.finish(turn.accepted.response_id)
    finished = await finish(turn)
    assert (finished.status, finished.error.code) == ("failed", "internal_error")
    assert session not in engine.contexts, "what the engine holds may be anything"
    view = await world.service.inspector.response(ANN, turn.accepted.response_id)
    assert view.finished.status == "failed"
    assert await world.context(session) == before
    engine.auto = True
    _, finished = await world.turn(ask("b", conversation=session))
    assert finished.status == "completed"
    assert await world.context(session) == engine.contexts[session]


async def test_a_reset_of_which_nobody_knows_whether_it_held_is_looked_up(
    world, engine, talk, monkeypatch
):
    session = talk[0]
    reset = world.store.reset_session

    async def hold_and_raise(*args, **kwargs):
        await reset(*args, **kwargs)
        raise StoreError("as the test wants")

    monkeypatch.setattr(world.store, "reset_session", hold_and_raise)
    with pytest.raises(StoreError):
        await world.service.conversations.reset(ANN, session)
    engine.auto = True
    _, finished = await world.turn(ask("b", conversation=session))
    said = rendered(("system", "be good"), ("user", "b"), ("assistant", finished.text))
    assert await world.context(session) == said == engine.contexts[session]


async def test_a_close_that_is_cut_in_its_write_is_found_out(world, talk, monkeypatch):
    session = talk[0]
    close, written = world.store.close_session, asyncio.Event()

    async def close_and_hang(*args):
        await close(*args)
        written.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(world.store, "close_session", close_and_hang)
    closing = asyncio.create_task(world.service.conversations.close(ANN, session))
    await written.wait()
    closing.cancel()
    await settled(closing)
    with pytest.raises(RequestError) as error:
        await world.begin(ask("b", conversation=session))
    assert error.value.code == "conversation_not_found"
