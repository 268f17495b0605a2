"""When summaries are written, who waits for one, how writing ends, and what a failure leads to."""

import asyncio

import msgspec
import pytest

from engine.messages import (
    CancelTurn,
    CloseContext,
    ForkContext,
    HurryContext,
    Sampling,
    SetContext,
    SubmitTurn,
)
from sessiond.facts import PolicyChoice
from sessiond.sessions.compaction import RETRY_AFTER_TURNS
from sessiond.sessions.summary_request import QUESTION, REQUEST
from sessiond.store.errors import StoreError
from tests.link.loops import INFO
from tests.sessions.fake_engine import FakeEngine
from tests.sessions.trimmed import FRONT, changes
from tests.sessions.world import (
    ANN,
    ROLES,
    SOCKET,
    World,
    ask,
    facts,
    finish,
    message,
    settled,
    until,
)

LIMIT = 4096
TOKENS = 100
KEPT = 2
POLICY = PolicyChoice(
    type="compaction",
    parameters={"compact_threshold": 500, "keep_turns": KEPT, "summary_tokens": TOKENS},
)
ASKED = [*message("user", REQUEST), ROLES["assistant"]]
HEAD = [*message("user", QUESTION), ROLES["assistant"]]
CLOSE = [256, 10]
TEXT = "x" * 80


def is_summary(command):
    return command.session.startswith("sum_")


@pytest.fixture
def engine():
    engine = FakeEngine(
        msgspec.structs.replace(INFO, max_model_len=LIMIT, total_blocks=LIMIT // 16)
    )
    engine.by_hand = is_summary
    return engine


class Talk:
    """A chat whose next turn will want a summary, and what is written of it."""

    def __init__(self, url, engine, **limits):
        self.url, self.engine, self.limits = url, engine, limits
        self.session = None

    async def open(self):
        self.world = await World.start(self.url, self.engine, policy=POLICY, **self.limits)
        return self

    async def say(self, text=TEXT, **fields):
        """What was told of a turn."""
        return await facts(await self.begin(text, **fields))

    async def begin(self, text=TEXT, **fields):
        turn = await self.world.begin(ask(text, conversation=self.session, **fields))
        self.session = turn.accepted.session_id
        return turn

    async def need_room(self, **fields):
        """A turn that does not fit without dropping others."""
        return await self.begin(max_output_tokens=3600, **fields)

    async def grow(self):
        """Until one more turn of this length would be past the threshold."""
        while len(self.visible) <= 420:
            await self.say()

    @property
    def visible(self):
        return self.engine.contexts.get(self.session, [])

    @property
    def submitted(self):
        return [command for command in self.engine.sent(SubmitTurn) if is_summary(command)]

    async def writing(self):
        """The turn that writes a summary, once it has been submitted."""
        await until(lambda: any(map(is_summary, self.open_turns)))
        return next(filter(is_summary, self.open_turns)).turn

    @property
    def open_turns(self):
        return [self.engine.turns[turn].command for turn in self.engine.running()]

    def write(self, turn, text="all of it"):
        self.engine.begin(turn)
        self.engine.say(turn, text)
        self.engine.finish(turn)

    async def idle(self):
        await until(lambda: not self.world.service._compaction._works)

    def assert_nothing_left(self):
        assert not any(map(is_summary, self.open_turns))
        assert not [session for session in self.engine.contexts if session.startswith("sum_")]


def pair(text="all of it"):
    return [*HEAD, *text.encode(), *CLOSE]


@pytest.fixture
async def talk(url, engine):
    talk = await Talk(url, engine).open()
    yield talk
    await talk.world.stop()
    talk.assert_nothing_left()


@pytest.fixture
async def talk_of(url, engine):
    talks = []

    async def make(**limits):
        talks.append(await Talk(url, engine, **limits).open())
        return talks[-1]

    yield make
    for talk in talks:
        await talk.world.stop()
        talk.assert_nothing_left()


def reasons(told):
    return [change.reason for change in changes(told)]


class TestInTheBackground:
    async def test_it_begins_when_a_turn_ends_past_the_threshold(self, talk, engine):
        await talk.grow()
        turn = await talk.writing()
        (command,) = talk.submitted
        (fork,) = engine.sent(ForkContext)
        assert fork == ForkContext(
            session=command.session, parent=talk.session, length=len(talk.visible)
        )
        assert command == SubmitTurn(
            turn=turn,
            session=turn,
            ids=ASKED,
            close_ids=CLOSE,
            stop_ids=[256],
            sampling=Sampling(temperature=0.0),
            max_output_tokens=TOKENS - len(HEAD) - len(CLOSE),
            background=True,
        )
        talk.write(turn)
        await talk.idle()
        stored = await talk.world.store.newest_summary(
            "ann", talk.world.service._parts.sessions.get(talk.session).tip_id
        )
        assert (stored.ref.id, stored.ref.tokens) == (turn, len(pair()))
        talk.assert_nothing_left()
        before = list(talk.visible)
        told = await talk.say()
        assert reasons(told) == ["summarized"]
        assert told[-1].usage.summary_tokens == len(pair())
        turn_tokens = (len(before) - len(FRONT)) // 5
        start = [*FRONT, *pair(), *before[-KEPT * turn_tokens :]]
        assert talk.visible[: len(start)] == start

    async def test_nothing_is_written_of_a_chat_that_is_short(self, talk):
        for _ in range(3):
            await talk.say()
        assert talk.submitted == []

    async def test_nor_where_the_turn_forbade_dropping(self, talk):
        for _ in range(8):
            await talk.say(truncation="disabled")
        assert talk.submitted == []

    async def test_a_turn_that_comes_meanwhile_goes_on(self, talk, engine):
        await talk.grow()
        turn = await talk.writing()
        for _ in range(2):
            told = await talk.say("meanwhile")
            assert reasons(told) == []
            assert told[-1].status == "completed"
        assert engine.sent(HurryContext) == []
        assert len(talk.submitted) == 1
        talk.write(turn)
        await talk.idle()
        assert reasons(await talk.say("later")) == ["summarized"]
        start = [*FRONT, *pair(), *message("user", "meanwhile")]
        assert talk.visible[: len(start)] == start

    async def test_a_turn_that_must_have_it_waits(self, talk, engine):
        await talk.grow()
        turn = await talk.writing()
        waiting = asyncio.create_task(talk.need_room())
        await until(lambda: engine.sent(HurryContext))
        assert engine.sent(HurryContext) == [HurryContext(session=turn)]
        assert len(engine.running()) == 1, "the turn itself has not begun"
        talk.write(turn)
        told = await facts(await waiting)
        assert reasons(told) == ["summarized"]

    async def test_there_are_so_many_at_a_time(self, talk_of):
        one = await talk_of(max_background_summaries=1)
        await one.grow()
        turn = await one.writing()
        first, one.session = one.session, None
        await one.grow()
        assert len(one.submitted) == 1
        one.write(turn)
        await one.idle()
        await one.say()
        await one.writing()
        assert len(one.submitted) == 2
        assert first != one.session

    async def test_one_that_nobody_waits_for_is_given_up_in_time(self, talk_of, engine):
        talk = await talk_of(background_summary_s=1.0)
        await talk.grow()
        await until(lambda: talk.submitted)
        await talk.idle()
        talk.assert_nothing_left()
        engine.by_hand = lambda _: False
        assert reasons(await facts(await talk.need_room())) == ["summarized"], "no failure"

    async def test_one_for_which_no_blocks_are_free_is_no_failure(self, talk, engine):
        await talk.grow()
        engine.fail(await talk.writing(), "queue_full")
        await talk.idle()
        waiting = asyncio.create_task(talk.need_room())
        turn = await talk.writing()
        assert not talk.submitted[-1].background, "a turn waits for it"
        talk.write(turn)
        assert reasons(await facts(await waiting)) == ["summarized"]


class TestWithoutOne:
    async def test_a_turn_that_must_have_one_has_it_written(self, talk_of, engine):
        talk = await talk_of(max_background_summaries=0)
        await talk.grow()
        assert talk.submitted == []
        engine.by_hand = lambda _: False
        told = await facts(await talk.need_room())
        assert reasons(told) == ["summarized"]
        assert len(engine.sent(ForkContext)) == 1

    async def test_of_a_context_that_the_engine_lost_too(self, talk_of, engine):
        talk = await talk_of(max_background_summaries=0)
        await talk.grow()
        seen = list(talk.visible)
        engine.lose()
        waiting = asyncio.create_task(talk.need_room())
        turn = await talk.writing()
        assert engine.contexts[turn] == seen
        assert engine.sent(ForkContext) == []
        assert engine.sent(SetContext)[-1].session == turn
        talk.write(turn)
        assert reasons(await facts(await waiting)) == ["summarized"]

    async def test_it_is_written_from_fewer_turns_where_all_leave_no_room(self, talk_of, engine):
        talk = await talk_of(max_background_summaries=0)
        await talk.grow()
        for _ in range(33):
            await talk.say("y" * 90, policy=PolicyChoice(type="none"))
        before = list(talk.visible)
        assert len(before) + len(ASKED) + TOKENS > LIMIT
        waiting = asyncio.create_task(talk.begin("z" * (LIMIT - len(before) - 10)))
        turn = await talk.writing()
        read = engine.contexts[turn]
        assert before[: len(read)] == read
        assert before[len(read)] == ROLES["user"], "whole turns"
        assert len(read) + len(ASKED) + TOKENS - len(HEAD) <= LIMIT
        talk.write(turn)
        assert reasons(await facts(await waiting)) == ["summarized"]


class TestEnds:
    """Whatever ends a session's KV ends what is written of it, and stores nothing."""

    async def close(self, talk):
        await talk.world.service.close_session(ANN, talk.session)

    async def reset(self, talk):
        await talk.world.service.reset_session(ANN, talk.session)

    async def detach(self, talk):
        await talk.world.service.detach(SOCKET)

    async def park(self, talk):
        await talk.world.service.park_session(ANN, talk.session)

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
        tip = talk.world.service._parts.sessions.get(talk.session).tip_id
        await getattr(self, end)(talk)
        await talk.idle()
        await until(lambda: CloseContext(session=turn, erase=True) in engine.commands)
        assert CancelTurn(turn=turn, keep=False) in engine.commands
        talk.assert_nothing_left()
        assert await talk.world.store.newest_summary("ann", tip) is None

    async def test_a_session_that_is_held_has_it_written_after_its_socket_left(self, talk):
        await talk.grow()
        await talk.world.service.update_session(ANN, talk.session, retention="hold", ttl_s=60)
        turn = await talk.writing()
        await talk.world.service.detach(SOCKET)
        talk.write(turn)
        await talk.idle()
        tip = talk.world.service._parts.sessions.get(talk.session).tip_id
        assert await talk.world.store.newest_summary("ann", tip) is not None

    async def test_an_engine_that_hangs_keeps_nobody(self, talk_of, engine):
        talk = await talk_of(summary_wait_s=0.01)
        await talk.grow()
        await talk.writing()
        engine.hangs = True
        told = await facts(await talk.need_room())
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
        waiting = asyncio.create_task(talk.world.service.run(bound))
        await until(lambda: engine.sent(HurryContext))
        await talk.world.service.cancel(ANN, bound.response_id, attachment=None, keep=keep)
        finished = await finish(await waiting)
        assert (finished.status, finished.reason) == ("incomplete", "cancelled")
        talk.assert_nothing_left()
        if not keep:
            assert await talk.world.context(talk.session) == before

    async def test_a_session_that_is_closed_while_a_turn_waits_ends_at_once(self, talk, engine):
        await talk.grow()
        await talk.writing()
        waiting = asyncio.create_task(talk.need_room())
        await until(lambda: engine.sent(HurryContext))
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
        assert reasons(await facts(await talk.need_room())) == ["summarized"], "no failure"


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
            await until(lambda: engine.sent(HurryContext))
            getattr(self, kind)(engine, turn)
            told = await facts(await waiting)
        else:
            getattr(self, kind)(engine, turn)
            await talk.idle()
            told = await facts(await talk.need_room())
        (change,) = changes(told)
        assert (change.reason, change.context) == ("summary_failed", "trimmed")
        assert told[-1].status == "completed"
        assert talk.visible[: len(FRONT)] == FRONT
        assert talk.visible[len(FRONT)] == ROLES["user"]
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
        await until(lambda: engine.sent(HurryContext))
        engine.lose()
        told = await facts(await waiting)
        assert reasons(told) == ["summary_failed"]
        assert told[-1].status == "completed"
        assert await talk.world.context(talk.session) == talk.visible

    async def test_one_that_is_not_there_in_time(self, talk_of, engine):
        talk = await talk_of(summary_wait_s=0.02)
        await talk.grow()
        await talk.writing()
        told = await facts(await talk.need_room())
        assert reasons(told) == ["summary_failed"]
        talk.assert_nothing_left()

    async def test_one_that_can_not_be_stored(self, talk, engine, monkeypatch):
        async def fail(_summary):
            raise StoreError("no room on the disk")

        monkeypatch.setattr(talk.world.store, "add_summary", fail)
        await talk.grow()
        talk.write(await talk.writing())
        await talk.idle()
        assert reasons(await facts(await talk.need_room())) == ["summary_failed"]

    async def test_a_fault_of_ours(self, talk, engine, monkeypatch, caplog):
        async def fail(_summary):
            raise ZeroDivisionError

        monkeypatch.setattr(talk.world.store, "add_summary", fail)
        await talk.grow()
        talk.write(await talk.writing())
        await talk.idle()
        assert "met a fault" in caplog.text
        assert reasons(await facts(await talk.need_room())) == ["summary_failed"]

    async def test_a_policy_that_fails_in_foresight_harms_no_turn(self, talk, caplog):
        def fail(_name, _parameters):
            raise ZeroDivisionError

        turn = await talk.begin()
        talk.world.service._policies._make = fail
        assert (await finish(turn)).status == "completed"
        await until(lambda: "could not be foreseen" in caplog.text)
