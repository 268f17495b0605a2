"""How a summary ends that is being written: with its session, its time, or a fault."""

import asyncio

import pytest

from engine.ipc.messages import CancelTurn, CloseContext, RaisePriority, SetContext
from sessiond.sessions.compaction import RETRY_AFTER_TURNS
from sessiond.store.errors import StoreError
from tests.fakes.policies import Shelf
from tests.harness.service import (
    ANN,
    ROLES,
    SOCKET,
    ask,
    entries,
    finish,
    settled,
    until,
)
from tests.sessions.summing_up import TEXT, TOKENS, engine, is_summary, reasons, talk, talk_of
from tests.sessions.trimmed import PREFIX, changes

__all__ = ["engine", "talk", "talk_of"]


class TestEnds:
    """Whatever ends a session's KV ends what is written of it, and stores nothing."""

    async def close(self, talk):
        await talk.world.service.conversations.close(ANN, talk.session)

    async def reset(self, talk):
        await talk.world.service.conversations.reset(ANN, talk.session)

    async def detach(self, talk):
        await talk.world.service.housekeeping.detach(SOCKET)

    async def park(self, talk):
        await talk.world.service.settings.park(ANN, talk.session)

    async def drain(self, talk):
        await talk.world.service.drain()

    async def stop(self, talk):
        await talk.world.service.stop()

    async def lose(self, talk):
        talk.engine.lose()

    @pytest.mark.parametrize("end", ["close", "reset", "detach", "park", "drain", "stop", "lose"])
    async def test_it_ends_with(self, talk, engine, end):
        await talk.grow()
        turn = await talk.writing()
        tip = talk.world.service.live.get(talk.session).tip_id
        await getattr(self, end)(talk)
        await talk.idle()
        await until(lambda: CloseContext(session=turn, erase=True) in engine.commands)
        assert CancelTurn(turn=turn, keep=False) in engine.commands
        talk.assert_nothing_left()
        assert await talk.world.store.newest_summary("ann", tip) is None

    async def test_a_session_that_is_held_has_it_written_after_its_socket_left(self, talk):
        await talk.grow()
        await talk.world.service.settings.update(ANN, talk.session, retention="hold", ttl_s=60)
        turn = await talk.writing()
        await talk.world.service.housekeeping.detach(SOCKET)
        talk.write(turn)
        await talk.idle()
        tip = talk.world.service.live.get(talk.session).tip_id
        assert await talk.world.store.newest_summary("ann", tip) is not None

    async def test_an_engine_that_hangs_keeps_nobody(self, talk_of, engine):
        talk = await talk_of(summary_wait_s=0.01)
        await talk.grow()
        await talk.writing()
        engine.hangs = True
        told = await entries(await talk.need_room())
        assert reasons(told) == ["summary_failed"]
        engine.hangs = False
        for command in talk.open_turns:
            engine.fail(command.turn, "internal_error")
        engine.contexts = {s: ids for s, ids in engine.contexts.items() if s == talk.session}

    @pytest.mark.parametrize("keep", [True, False])
    async def test_a_turn_that_is_cancelled_waits_no_longer(self, talk, engine, keep):
        await talk.grow()
        before = await talk.world.context(talk.session)
        engine.by_hand = lambda _: True
        bound = await talk.world.bind(ask(TEXT, conversation=talk.session, max_output_tokens=3600))
        waiting = asyncio.create_task(talk.world.service.turns.run(bound))
        await until(lambda: engine.sent(RaisePriority))
        await talk.world.service.followers.cancel(
            ANN, bound.response_id, attachment=None, keep=keep
        )
        finished = await finish(await waiting)
        assert (finished.status, finished.reason) == ("incomplete", "cancelled")
        talk.assert_nothing_left()
        if not keep:
            assert await talk.world.context(talk.session) == before

    async def test_a_session_that_is_closed_while_a_turn_waits_ends_at_once(self, talk, engine):
        await talk.grow()
        await talk.writing()
        waiting = asyncio.create_task(talk.need_room())
        await until(lambda: engine.sent(RaisePriority))
        engine.by_hand = lambda _: True
        closing = asyncio.create_task(self.close(talk))
        await settled(waiting, closing)
        assert closing.exception() is None
        talk.assert_nothing_left()

    async def test_a_turn_waits_no_longer_than_it_has_time(self, talk, engine):
        await talk.grow()
        await talk.writing()
        engine.by_hand = lambda _: True
        turn = await talk.need_room(deadline_ms=20)
        assert (await finish(turn)).reason == "deadline"
        engine.by_hand = lambda _: False
        assert reasons(await entries(await talk.need_room())) == ["summarized"], "no failure"


class TestDisk:
    async def test_nothing_goes_there_of_one_whose_context_was_lost_either(self, talk, engine):
        """An engine that is lost would leave there what nobody can erase."""
        await talk.grow()
        await talk.writing()
        live = talk.world.service.live.get(talk.session)
        talk.world.service.retention.unplace(live)
        await until(lambda: not talk.open_turns)
        waiting = asyncio.create_task(talk.need_room())
        turn = await talk.writing()
        (command,) = filter(is_summary, engine.sent(SetContext))
        assert command.volatile
        talk.write(turn)
        assert reasons(await entries(await waiting)) == ["summarized"]


class TestFailures:
    """None is an error to the client: the window slides, and it is told."""

    def fault(self, engine, turn):
        engine.fail(turn, "internal_error")

    def empty(self, engine, turn):
        engine.begin(turn)
        engine.say(turn, " \n")
        engine.finish(turn)

    def too_long(self, engine, turn):
        engine.begin(turn)
        engine.say(turn, "x" * TOKENS)
        engine.finish(turn)

    def cancelled(self, engine, turn):
        engine.cancel(CancelTurn(turn=turn, keep=False))

    @pytest.mark.parametrize("kind", ["fault", "empty", "too_long", "cancelled"])
    @pytest.mark.parametrize("waits", [True, False])
    async def test_falls_back_to_the_window(self, talk, engine, kind, waits):
        await talk.grow()
        turn = await talk.writing()
        if waits:
            waiting = asyncio.create_task(talk.need_room())
            await until(lambda: engine.sent(RaisePriority))
            getattr(self, kind)(engine, turn)
            told = await entries(await waiting)
        else:
            getattr(self, kind)(engine, turn)
            await talk.idle()
            told = await entries(await talk.need_room())
        (change,) = changes(told)
        assert (change.reason, change.context) == ("summary_failed", "trimmed")
        assert told[-1].status == "completed"
        assert talk.visible[: len(PREFIX)] == PREFIX
        assert talk.visible[len(PREFIX)] == ROLES["user"]
        assert len(talk.submitted) == 1

    async def test_the_next_try_comes_some_turns_later(self, talk, engine):
        await talk.grow()
        engine.fail(await talk.writing(), "internal_error")
        await talk.idle()
        for number in range(RETRY_AFTER_TURNS - 1):
            told = await talk.say("short")
            assert reasons(told) == [], number
        assert len(talk.submitted) == 1
        await talk.say("short")
        talk.write(await talk.writing())
        assert len(talk.submitted) == 2
        await talk.idle()
        assert reasons(await talk.say("short")) == ["summarized"]

    async def test_an_engine_that_dies_while_a_turn_waits(self, talk, engine):
        await talk.grow()
        await talk.writing()
        waiting = asyncio.create_task(talk.need_room())
        await until(lambda: engine.sent(RaisePriority))
        engine.lose()
        told = await entries(await waiting)
        assert reasons(told) == ["summary_failed"]
        assert told[-1].status == "completed"
        assert await talk.world.context(talk.session) == talk.visible

    async def test_one_that_is_not_there_in_time(self, talk_of, engine):
        talk = await talk_of(summary_wait_s=0.02)
        await talk.grow()
        await talk.writing()
        told = await entries(await talk.need_room())
        assert reasons(told) == ["summary_failed"]
        talk.assert_nothing_left()

    async def test_one_that_can_not_be_stored(self, talk, engine, monkeypatch):
        async def fail(_summary):
            raise StoreError("no room on the disk")

        monkeypatch.setattr(talk.world.store, "add_summary", fail)
        await talk.grow()
        talk.write(await talk.writing())
        await talk.idle()
        assert reasons(await entries(await talk.need_room())) == ["summary_failed"]

    async def test_a_fault_of_ours(self, talk, engine, monkeypatch, caplog):
        async def fail(_summary):
            raise ZeroDivisionError

        monkeypatch.setattr(talk.world.store, "add_summary", fail)
        await talk.grow()
        talk.write(await talk.writing())
        await talk.idle()
        assert "failed unexpectedly" in caplog.text
        assert reasons(await entries(await talk.need_room())) == ["summary_failed"]

    async def test_a_policy_that_fails_in_look_ahead_harms_no_turn(self, talk, caplog, monkeypatch):
        def fail(*_):
            raise ZeroDivisionError

        turn = await talk.begin()
        monkeypatch.setattr(Shelf, "__call__", fail)
        assert (await finish(turn)).status == "completed"
        await until(lambda: "summary look-ahead" in caplog.text)
