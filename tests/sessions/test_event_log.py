"""What a turn has told, told again: in order, without gaps, within bounds."""

import asyncio
from itertools import count

import pytest

from sessiond.domain import (
    AttachmentId,
    TextDelta,
    TurnAccepted,
    TurnBegun,
    TurnFinished,
    TurnRequest,
    TurnUsage,
)
from sessiond.errors import RequestError
from sessiond.sessions.turn import (
    ENTRY_BYTES,
    EntriesLostError,
    EventLog,
    EventLogs,
    LogReplay,
    SkippedEntries,
)
from tests.harness.service import ANN, BOB, SOCKET, World, ask, entries, finish, until

DONE = TurnFinished(status="completed", text="abc", usage=TurnUsage())
OTHER = AttachmentId("sock_2")


def told(log, *given):
    for entry in given:
        log.put(TextDelta(text=entry) if isinstance(entry, str) else entry)
    return log


async def whole(source):
    told = source.entries() if isinstance(source, LogReplay) else source.read()
    return [entry async for entry in told]


class TestEventLog:
    async def test_deltas_that_wait_are_one_and_the_end_is_the_end(self):
        log = told(EventLog(), TurnBegun(), "a", "b")
        reader = log.read()
        assert await anext(reader) == TurnBegun()
        assert await anext(reader) == TextDelta(text="ab")
        waiting = asyncio.create_task(anext(reader))
        await asyncio.sleep(0)
        told(log, "c", DONE)
        assert await waiting == TextDelta(text="c")
        assert [entry async for entry in reader] == [DONE]

    async def test_every_reader_finds_the_same_facts_whenever_it_comes(self):
        log = told(EventLog(), TurnBegun(), "a")
        first = log.read()
        seen = [await anext(first), await anext(first)]
        second = asyncio.create_task(whole(log))
        await asyncio.sleep(0)
        told(log, "b")
        await asyncio.sleep(0)
        told(log, "c", DONE)
        assert seen + [entry async for entry in first] == await second == await whole(log)
        assert await second == [TurnBegun(), *(TextDelta(text=text) for text in "abc"), DONE]

    async def test_the_oldest_that_were_given_make_room(self):
        log = EventLog(max_entries=3)
        reader = log.read()
        for text in "abcdef":
            told(log, text)
            assert await anext(reader) == TextDelta(text=text)
        assert log.skipped == SkippedEntries(deltas=3, text="abc")
        told(log, DONE)
        assert await whole(log) == [TextDelta(text="e"), TextDelta(text="f"), DONE]
        assert await anext(reader) == DONE

    async def test_its_bytes_are_bounded(self):
        log = EventLog(max_bytes=5 * ENTRY_BYTES)
        reader = log.read()
        for _ in range(100):
            told(log, "x" * ENTRY_BYTES)
            await anext(reader)
        assert log.size_bytes - len(log.skipped.text) <= 5 * ENTRY_BYTES
        assert log.skipped.deltas == 98

    async def test_what_nobody_has_read_is_kept_as_one_fact(self):
        log = EventLog(max_entries=3)
        told(log, TurnBegun(), *"abcdefgh", DONE)
        assert await whole(log) == [TurnBegun(), TextDelta(text="abcdefgh"), DONE]

    async def test_a_reader_that_falls_behind_is_told_so(self):
        log = told(EventLog(max_entries=2), "a")
        slow, fast = log.read(), log.read()
        await anext(slow)
        await anext(fast)
        for text in "bcde":
            told(log, text)
            await anext(fast)
        with pytest.raises(EntriesLostError):
            await anext(slow)


def replay(response_id, session_id="conv_1"):
    accepted = TurnAccepted(
        response_id=response_id,
        session_id=session_id,
        message_id="msg_1",
        previous_response_id=None,
        model="m",
        instructions=None,
        created_at=1.0,
        request=TurnRequest(),
    )
    return LogReplay(accepted=accepted, log=told(EventLog(), "abc", DONE))


class TestEventLogs:
    def test_t10_of_ten_thousand_ended_turns_few_are_kept(self):
        replays = EventLogs(ttl_s=60.0, max_bytes=100_000)
        for number in range(10_000):
            one = replay(f"resp_{number}")
            replays.begin("ann", one)
            replays.end(f"resp_{number}", 0.0)
        assert len(replays) == 100_000 // one.log.size_bytes
        assert replays.find("ann", "resp_9999") is one
        assert replays.find("ann", "resp_0") is None
        replays.reap(59.9)
        assert len(replays)
        replays.reap(60.0)
        assert (len(replays), replays.size_bytes) == (0, 0)

    def test_t10_they_go_with_their_session_or_response(self):
        replays = EventLogs(ttl_s=60.0, max_bytes=100_000)
        for name, session in (("resp_1", "conv_1"), ("resp_2", "conv_2"), ("resp_3", "conv_1")):
            replays.begin("ann", replay(name, session))
            replays.end(name, 0.0)
        replays.forget_session("conv_1")
        assert [replays.find("ann", f"resp_{n}") is None for n in (1, 2, 3)] == [True, False, True]
        replays.forget("resp_2")
        replays.forget("resp_2")
        assert (len(replays), replays.size_bytes) == (0, 0)

    def test_a_running_turn_is_nobody_elses(self):
        replays = EventLogs(ttl_s=60.0, max_bytes=0)
        one = replay("resp_1")
        replays.begin("ann", one)
        assert replays.find("ann", "resp_1") is one
        assert replays.find("bob", "resp_1") is None
        replays.end("resp_1", 0.0)
        assert len(replays) == 0


async def refused(work, code, param=None):
    with pytest.raises(RequestError) as caught:
        await work
    assert (caught.value.code, caught.value.param) == (code, param or caught.value.param)


async def test_a_running_turn_is_followed_from_its_beginning_to_its_end(world, engine):
    engine.auto = False
    turn = await world.begin(ask("a"))
    name = turn.accepted.response_id
    first = asyncio.create_task(entries(turn))
    engine.begin(name)
    engine.say(name, "one ")
    replay = await world.service.followers.follow(ANN, name)
    second = asyncio.create_task(whole(replay))
    await asyncio.sleep(0)
    engine.say(name, "two")
    engine.finish(name)
    assert await second == await first
    assert await whole(await world.service.followers.follow(ANN, name)) == await first


async def test_following_is_not_for_others(world):
    turn, _ = await world.turn(ask("a"))
    name = turn.accepted.response_id
    await refused(world.service.followers.follow(BOB, name), "previous_response_not_found")
    await refused(world.service.followers.follow(ANN, "resp_none"), "previous_response_not_found")


async def test_after_a_restart_a_finished_turn_is_told_from_its_row(url, engine):
    ids = count(1)
    world = await World.start(url, engine, ids)
    turn, finished = await world.turn(ask("a"))
    await world.stop()
    world = await World.start(url, engine, ids)
    replay = await world.service.followers.follow(ANN, turn.accepted.response_id)
    assert replay.is_stored
    assert await whole(replay) == [TurnBegun(), finished]
    await world.stop()


async def test_a_follower_waits_for_a_turn_that_waits_for_its_place(world, engine):
    engine.auto = False
    first = await world.begin(ask("a"))
    waits = await world.bind(ask("b", conversation=first.accepted.session_id))
    running = asyncio.create_task(world.service.turns.run(waits))
    following = asyncio.create_task(world.service.followers.follow(ANN, waits.response_id))
    # one that came later has been looked up and refused meanwhile
    await refused(world.service.followers.follow(ANN, "resp_none"), "previous_response_not_found")
    assert not following.done()
    engine.finish(first.accepted.response_id)
    turn = await running
    engine.finish(waits.response_id)
    assert (await whole(await following))[-1] == await finish(turn)


async def test_a_socket_that_follows_holds_the_session(world, engine):
    turn, _ = await world.turn(ask("a"))
    world.service.housekeeping.attach(OTHER)
    await world.service.followers.follow(ANN, turn.accepted.response_id, attachment=OTHER)
    await world.service.housekeeping.detach(SOCKET)
    assert engine.cached[turn.accepted.session_id]
    await world.service.housekeeping.detach(OTHER)
    assert not engine.cached[turn.accepted.session_id]


async def test_what_was_told_goes_with_the_session_and_with_the_response(world, engine):
    turn, _ = await world.turn(ask("a"))
    gone, _ = await world.turn(ask("b"))
    await world.service.conversations.close(ANN, turn.accepted.session_id)
    await world.service.followers.forget(ANN, gone.accepted.response_id)
    for name in (turn.accepted.response_id, gone.accepted.response_id):
        await refused(world.service.followers.follow(ANN, name), "previous_response_not_found")
    assert len(world.service.runner.replays) == 0


async def test_the_reaper_forgets_what_was_told(url, engine):
    world = await World.start(url, engine, reap_every_s=0.005, replay_ttl_s=10.0)
    await world.turn(ask("a"))
    assert len(world.service.runner.replays) == 1
    world.clock.advance(11)
    await until(lambda: len(world.service.runner.replays) == 0)
    await world.stop()
