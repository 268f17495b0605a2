"""When summaries are written, who waits for one, how writing ends, and what a failure leads to."""

import asyncio

import pytest

from engine.ipc.messages import ForkContext, RaisePriority, Sampling, SetContext, SubmitTurn
from sessiond.domain import PolicyChoice, SummaryOverdue
from tests.harness.service import (
    ANN,
    ROLES,
    entries,
    message,
    until,
)
from tests.sessions.quota_words import limit, use_of
from tests.sessions.summing_up import (
    ASKED,
    CLOSE,
    HEAD,
    KEPT,
    LIMIT,
    TOKENS,
    engine,
    pair,
    reasons,
    talk,
    talk_of,
)
from tests.sessions.trimmed import PREFIX

__all__ = ["engine", "talk", "talk_of"]

THRESHOLD = 500
FAR = 750


class TestInTheBackground:
    async def test_it_begins_when_a_turn_ends_past_the_threshold(self, talk, engine):
        await talk.grow()
        turn = await talk.writing()
        (command,) = talk.submitted
        (fork,) = engine.sent(ForkContext)
        assert fork == ForkContext(
            session=command.session, parent=talk.session, length=len(talk.visible), volatile=True
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
            "ann", talk.world.service.live.get(talk.session).tip_id
        )
        assert (stored.ref.id, stored.ref.tokens) == (turn, len(pair()))
        talk.assert_nothing_left()
        before = list(talk.visible)
        told = await talk.say()
        assert reasons(told) == ["summarized"]
        assert told[-1].usage.summary_tokens == len(pair())
        turn_tokens = (len(before) - len(PREFIX)) // 5
        start = [*PREFIX, *pair(), *before[-KEPT * turn_tokens :]]
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
        assert engine.sent(RaisePriority) == []
        assert len(talk.submitted) == 1
        talk.write(turn)
        await talk.idle()
        assert reasons(await talk.say("later")) == ["summarized"]
        start = [*PREFIX, *pair(), *message("user", "meanwhile")]
        assert talk.visible[: len(start)] == start

    async def test_a_turn_that_must_have_it_waits(self, talk, engine):
        await talk.grow()
        turn = await talk.writing()
        waiting = asyncio.create_task(talk.need_room())
        await until(lambda: engine.sent(RaisePriority))
        assert engine.sent(RaisePriority) == [RaisePriority(session=turn)]
        assert len(engine.running()) == 1, "the turn itself has not begun"
        talk.write(turn)
        told = await entries(await waiting)
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
        assert reasons(await entries(await talk.need_room())) == ["summarized"], "no failure"

    async def test_one_for_which_no_blocks_are_free_is_no_failure(self, talk, engine):
        await talk.grow()
        engine.fail(await talk.writing(), "queue_full")
        await talk.idle()
        waiting = asyncio.create_task(talk.need_room())
        turn = await talk.writing()
        assert not talk.submitted[-1].background, "a turn waits for it"
        talk.write(turn)
        assert reasons(await entries(await waiting)) == ["summarized"]


def overdue(told):
    return [entry for entry in told if isinstance(entry, SummaryOverdue)]


async def grown(talk, tokens):
    """Turns up to a context of so many tokens; what was told of being overdue."""
    told = []
    while len(talk.visible) <= tokens:
        told += overdue(await talk.say())
    return told


class TestOverdue:
    async def test_m02_each_threshold_is_told_once(self, talk):
        await grown(talk, 420)
        await talk.writing()
        past = await grown(talk, FAR)
        assert [one.threshold for one in past] == [THRESHOLD]
        assert THRESHOLD < past[0].tokens <= FAR
        assert past[0].session_id == talk.session

    async def test_m02_far_beyond_the_threshold_it_runs_in_the_foreground(self, talk, engine):
        await grown(talk, 420)
        turn = await talk.writing()
        await grown(talk, THRESHOLD)
        assert engine.sent(RaisePriority) == [], "it has a share of each step"
        await grown(talk, FAR)
        await until(lambda: engine.sent(RaisePriority))
        assert engine.sent(RaisePriority) == [RaisePriority(session=turn)]
        assert len(talk.submitted) == 1

    async def test_m02_far_beyond_the_threshold_the_next_turn_waits_for_it(self, talk, engine):
        await grown(talk, FAR)
        turn = await talk.writing()
        waiting = asyncio.create_task(talk.begin())
        await until(lambda: engine.sent(RaisePriority))
        assert len(engine.running()) == 1, "the turn itself has not begun"
        assert not waiting.done()
        talk.write(turn)
        told = await entries(await waiting)
        assert reasons(told) == ["summarized"]
        assert len(talk.visible) < FAR

    async def test_where_none_runs_it_begins_in_the_foreground(self, talk_of, engine):
        talk = await talk_of(max_background_summaries=0)
        await grown(talk, FAR)
        await talk.writing()
        (command,) = talk.submitted
        assert not command.background

    async def test_a_turn_that_has_waited_long_goes_on_and_tells_so(self, talk_of, engine):
        talk = await talk_of(summary_wait_s=0.01)
        told = await grown(talk, FAR)
        told += overdue(await talk.say())
        assert [one.threshold for one in told] == [THRESHOLD, FAR]
        assert len(talk.submitted) == 1, "the summary goes on"
        talk.write(await talk.writing())
        await talk.idle()
        assert reasons(await talk.say()) == ["summarized"]

    async def test_after_a_summary_each_threshold_counts_anew(self, talk, engine):
        past = await grown(talk, FAR)
        talk.write(await talk.writing())
        await talk.idle()
        assert reasons(await talk.say()) == ["summarized"]
        past += await grown(talk, FAR)
        assert [one.threshold for one in past] == [THRESHOLD] * 2


class TestWhoPays:
    """R02: a summary is charged to the user whose conversation it is, and runs on its terms."""

    async def used(self, talk):
        return (await use_of(talk.world)).total_tokens

    async def test_r02_its_tokens_are_charged(self, talk, engine):
        await talk.grow()
        turn = await talk.writing()
        before = await self.used(talk)
        talk.write(turn)
        await talk.idle()
        cost = len(ASKED) + len("all of it")
        assert await self.used(talk) == before + cost

    @pytest.mark.parametrize("end", ["closed", "empty", "failed"])
    async def test_r02_also_of_one_that_comes_to_nothing(self, talk, engine, end):
        await talk.grow()
        turn = await talk.writing()
        before = await self.used(talk)
        engine.begin(turn)
        said = "some of it" if end == "closed" else " "
        engine.say(turn, said)
        if end == "closed":
            await talk.world.service.conversations.close(ANN, talk.session)
        elif end == "empty":
            engine.finish(turn)
        else:
            engine.incomplete(turn, "memory_pressure")
        await talk.idle()
        await talk.world.service.compaction.stop()
        assert await self.used(talk) >= before + len(ASKED) + len(said)

    async def test_r02_it_runs_on_the_terms_of_its_user(self, talk):
        await limit(talk.world, weight=2.5, max_resident_blocks=70)
        await talk.say(priority="high")
        await talk.grow()
        await talk.writing()
        (command,) = talk.submitted
        assert (command.terms.weight, command.terms.max_blocks) == (2.5, 70)


class TestWithoutOne:
    async def test_a_turn_that_must_have_one_has_it_written(self, talk_of, engine):
        talk = await talk_of(max_background_summaries=0)
        await talk.grow()
        assert talk.submitted == []
        engine.by_hand = lambda _: False
        told = await entries(await talk.need_room())
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
        assert reasons(await entries(await waiting)) == ["summarized"]

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
        assert reasons(await entries(await waiting)) == ["summarized"]
