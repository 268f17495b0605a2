"""Several servers on one database: who owns a session, and what becomes of the others' work."""

import asyncio
from contextlib import asynccontextmanager
from itertools import count
from random import Random

import pytest

from engine.ipc.messages import CloseContext
from sessiond.domain import PolicyChoice
from sessiond.errors import RequestError
from tests.fakes.fake_clock import FakeClock
from tests.harness.service import ANN, World, ask, entries, finish, rendered, settled, timers
from tests.sessions.fake_engine import FakeEngine
from tests.sessions.quota_words import limit, refusal_of, use_of

LEASE_S = 15.0
PREFIX = ("system", "be good")


@asynccontextmanager
async def servers(url, names="ab"):
    """Servers with clocks that agree and ids that differ."""
    clock, ids = FakeClock(), count(1)
    worlds = [
        await World.start(url, FakeEngine(), ids, clock=clock, replica=name) for name in names
    ]
    try:
        yield worlds
    finally:
        for world in worlds:
            await world.stop()


async def die(world):
    """End as after `kill -9`: nothing is said to anybody."""
    for task in (*timers(world.service), *world.service.runner._tasks):  # noqa: SLF001 -- see timers
        task.cancel()
    await asyncio.sleep(0)


async def owner(world, session):
    record = await world.store.find_session("ann", session)
    return record.owner, record.epoch


def talked(*turns):
    """The context after these questions and replies."""
    parts = [
        (role, text)
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    return rendered(PREFIX, *parts)


async def test_an_idle_session_is_taken_over_and_taken_back(url):
    async with servers(url) as (a, b):
        first, one = await a.turn(ask("1"))
        session = first.accepted.session_id
        assert await owner(a, session) == (a.store.replica_id, 1)
        _, two = await b.turn(ask("2", conversation=session))
        assert await owner(a, session) == (b.store.replica_id, 2)
        _, three = await a.turn(ask("3", conversation=session))
        assert await owner(a, session) == (a.store.replica_id, 3)
        right = talked(("1", one.text), ("2", two.text), ("3", three.text))
        assert await a.context(session) == right
        assert a.engine.contexts[session] == right


async def test_a_response_made_elsewhere_is_continued_in_its_session(url):
    async with servers(url) as (a, b):
        first, _ = await a.turn(ask("1"))
        second, _ = await b.turn(ask("2", previous_response_id=first.accepted.response_id))
        third, _ = await a.turn(ask("3", previous_response_id=second.accepted.response_id))
        sessions = {turn.accepted.session_id for turn in (first, second, third)}
        assert len(sessions) == 1
        assert a.engine.contexts[sessions.pop()] == await a.context(third.accepted.session_id)


async def test_a_session_that_is_busy_elsewhere_is_refused_by_name_and_forked_by_response(url):
    async with servers(url) as (a, b):
        first, one = await a.turn(ask("1"))
        session, tip = first.accepted.session_id, first.accepted.response_id
        a.engine.auto = False
        running = await a.begin(ask("2", conversation=session))
        for _ in range(2):
            with pytest.raises(RequestError) as error:
                await b.begin(ask("x", conversation=session))
            assert (error.value.code, error.value.status) == ("turn_in_progress", 409)
        fork, forked = await b.turn(ask("f", previous_response_id=tip))
        assert fork.accepted.session_id != session
        assert await b.context(fork.accepted.session_id) == talked(
            ("1", one.text), ("f", forked.text)
        )
        a.engine.begin(running.accepted.response_id)
        a.engine.finish(running.accepted.response_id)
        assert (await finish(running)).status == "completed"
        assert await owner(a, session) == (a.store.replica_id, 1)


async def test_who_was_taken_for_dead_can_not_commit_and_goes_on_with_what_came_since(url):
    async with servers(url) as (a, b):
        first, one = await a.turn(ask("1"))
        session = first.accepted.session_id
        a.engine.auto = False
        late = await a.begin(ask("late", conversation=session))
        a.engine.begin(late.accepted.response_id)
        a.engine.say(late.accepted.response_id, "never stored")
        a.clock.advance(LEASE_S + 1)
        _, two = await b.turn(ask("2", conversation=session))

        a.engine.finish(late.accepted.response_id)
        finished = await finish(late)
        assert (finished.status, finished.error.code) == ("failed", "internal_error")
        assert "another server" in finished.error.message
        assert session not in a.engine.contexts  # its KV was of another past
        assert await b.context(session) == talked(("1", one.text), ("2", two.text))

        a.engine.auto = True
        _, three = await a.turn(ask("3", conversation=session))
        right = talked(("1", one.text), ("2", two.text), ("3", three.text))
        assert await a.context(session) == a.engine.contexts[session] == right
        row = await a.store.find_turn("ann", late.accepted.response_id)
        assert (row.status, row.is_checkpoint) == ("failed", False)


async def test_who_was_taken_for_dead_commits_what_nobody_has_taken(url):
    """The lease decides what others may do; what holds is decided by the row."""
    async with servers(url) as (a, b):
        a.engine.auto = False
        turn = await a.begin(ask("1"))
        a.engine.begin(turn.accepted.response_id)
        a.clock.advance(LEASE_S + 1)
        await b.service.replica.beat()
        assert (await b.store.find_turn("ann", turn.accepted.response_id)).status == "failed"
        a.engine.finish(turn.accepted.response_id)
        assert (await finish(turn)).status == "completed"
        assert (await b.store.find_turn("ann", turn.accepted.response_id)).is_checkpoint


async def test_sessions_of_a_dead_server_are_free_when_its_lease_is_over(url):
    async with servers(url) as (a, b):
        first, one = await a.turn(ask("1"))
        session = first.accepted.session_id
        a.engine.auto = False
        half = await a.begin(ask("half", conversation=session))
        await die(a)
        b.clock.advance(LEASE_S - 1)
        with pytest.raises(RequestError, match="in progress"):
            await b.begin(ask("2", conversation=session))
        b.clock.advance(2)
        _, two = await b.turn(ask("2", conversation=session))
        assert await b.context(session) == talked(("1", one.text), ("2", two.text))
        row = await b.store.find_turn("ann", half.accepted.response_id)
        assert (row.status, row.error.code) == ("failed", "engine_restarted")


async def test_a_server_that_keeps_its_lease_keeps_its_sessions(url):
    async with servers(url) as (a, b):
        a.engine.auto = False
        turn = await a.begin(ask("1"))
        for _ in range(5):
            a.clock.advance(LEASE_S / 2)
            await a.service.replica.beat()
            await b.service.replica.beat()
        with pytest.raises(RequestError, match="in progress"):
            await b.begin(ask("2", conversation=turn.accepted.session_id))
        assert (await b.store.find_turn("ann", turn.accepted.response_id)).status == "running"


async def test_a_server_started_again_under_its_name_does_not_wait_for_its_own_lease(url):
    async with servers(url) as (a, _):
        turn, _ = await a.turn(ask("1"))
        session = turn.accepted.session_id
        a.engine.auto = False
        half = await a.begin(ask("half", conversation=session))
        await die(a)
        again = await World.start(url, FakeEngine(), count(1000), clock=a.clock, replica="a")
        row = await again.store.find_turn("ann", half.accepted.response_id)
        assert (row.status, row.error.code) == ("failed", "engine_restarted")
        await again.turn(ask("2", conversation=session))
        await again.stop()


async def test_a_start_leaves_the_turns_of_living_servers_alone(url):
    async with servers(url) as (a, _):
        a.engine.auto = False
        turn = await a.begin(ask("1"))
        third = await World.start(url, FakeEngine(), count(1000), clock=a.clock)
        assert (await third.store.find_turn("ann", turn.accepted.response_id)).status == "running"
        await third.stop()


async def test_a_server_that_stops_leaves_its_sessions_to_the_others_at_once(url):
    async with servers(url) as (a, b):
        a.engine.auto = False
        turn = await a.begin(ask("1", generate=True))
        session = turn.accepted.session_id
        await a.service.stop()
        with pytest.raises(RequestError, match="must not be empty unless a message awaits a reply"):
            await b.turn(ask(conversation=session))  # bound and taken: the half turn is nowhere
        assert (await owner(b, session))[0] == b.store.replica_id


async def test_a_heartbeat_gives_back_the_kv_of_sessions_that_went_on_elsewhere(url):
    async with servers(url) as (a, b):
        moved, _ = await a.turn(ask("1"))
        closed, _ = await a.turn(ask("1"))
        kept, _ = await a.turn(ask("1"))
        await b.turn(ask("2", conversation=moved.accepted.session_id))
        await b.service.conversations.close(ANN, closed.accepted.session_id)
        await a.service.replica.beat()
        gone = {command.session for command in a.engine.sent(CloseContext)}
        assert gone == {moved.accepted.session_id, closed.accepted.session_id}
        assert set(a.engine.contexts) == {kept.accepted.session_id}
        await a.turn(ask("3", conversation=moved.accepted.session_id))
        assert moved.accepted.session_id in a.engine.contexts


async def test_a_session_that_is_busy_elsewhere_can_be_closed(url):
    async with servers(url) as (a, b):
        a.engine.auto = False
        turn = await a.begin(ask("1"))
        a.engine.begin(turn.accepted.response_id)
        await b.service.conversations.close(ANN, turn.accepted.session_id)
        a.engine.finish(turn.accepted.response_id)
        assert (await entries(turn))[-1].status == "failed"
        for world in (a, b):
            with pytest.raises(RequestError) as error:
                await world.begin(ask("2", conversation=turn.accepted.session_id))
            assert error.value.code == "conversation_not_found"


async def test_what_was_said_of_a_session_at_one_server_holds_at_the_other(url):
    async with servers(url) as (a, b):
        turn, _ = await a.turn(ask("1"))
        session = turn.accepted.session_id
        choice = PolicyChoice(type="sliding_window", parameters={"max_tokens": 900})
        await b.service.settings.update(ANN, session, policy=choice, priority="high")
        await b.service.conversations.add_items(ANN, session, ask("added").input)
        view = await a.service.settings.update(ANN, session, retention="park")
        live = a.service.live.get(session)
        assert (live.policy, live.hints.priority, live.hints.retention) == (choice, "high", "park")
        assert live.tip_id == view.turns[-1].response_id
        await b.service.conversations.reset(ANN, session)
        _, finished = await a.turn(ask("2", conversation=session))
        assert await a.context(session) == talked(("2", finished.text))


async def test_a_session_that_is_lost_between_plan_and_commit_is_planned_again(url, monkeypatch):
    async with servers(url) as (a, b):
        first, one = await a.turn(ask("1"))
        session = first.accepted.session_id
        begin_turn, replies = a.store.begin_turn, []

        async def late(*args, **kwargs):
            if not replies:
                replies.append((await b.turn(ask("2", conversation=session)))[1].text)
            return await begin_turn(*args, **kwargs)

        monkeypatch.setattr(a.store, "begin_turn", late)
        _, three = await a.turn(ask("3", conversation=session))
        right = talked(("1", one.text), ("2", replies[0]), ("3", three.text))
        assert await a.context(session) == a.engine.contexts[session] == right


async def test_a_response_that_is_no_tip_any_more_when_its_turn_begins_is_refused(url, monkeypatch):
    """It was bound to continue; a fork is for the client to ask for."""
    async with servers(url) as (a, b):
        first, _ = await a.turn(ask("1"))
        session, tip = first.accepted.session_id, first.accepted.response_id
        bound = await a.bind(ask("3", previous_response_id=tip))
        await b.turn(ask("2", conversation=session))
        with pytest.raises(RequestError) as error:
            await a.service.turns.run(bound)
        assert error.value.code == "turn_in_progress"
        assert (await a.turn(ask("3", previous_response_id=tip)))[0].accepted.session_id != session


@pytest.mark.parametrize("seed", range(3))
async def test_random_turns_at_three_servers_make_one_history(url, seed):
    """Servers die for the others (their lease is over) and find out at their next commit."""
    random = Random(seed)
    async with servers(url, "abc") as worlds:
        sessions = [(await worlds[0].turn(ask(f"s{n}")))[0].accepted.session_id for n in range(3)]
        histories = {session: await worlds[0].context(session) for session in sessions}

        async def talk(world, number):
            session = random.choice(sessions)
            if random.random() < 0.2:
                world.clock.advance(LEASE_S + 1)  # all but those that renew are dead
            if random.random() < 0.3:
                await world.service.replica.beat()
            (ended,) = await settled(world.turn(ask(f"n{number}", conversation=session)))
            if isinstance(ended, RequestError):
                assert ended.code == "turn_in_progress"
                return 0
            turn, finished = ended
            if finished.status != "completed":
                assert "another server" in finished.error.message
                return 0
            row = await world.store.find_turn("ann", turn.accepted.response_id)
            assert row.status == "completed"
            return 1

        done = 0
        for number in range(20):
            done += sum(
                await asyncio.gather(
                    *(talk(world, f"{number}{w}") for w, world in enumerate(worlds))
                )
            )
        assert done > 5
        kept = 0
        for session, begun in histories.items():
            detail = await worlds[0].store.session_detail("ann", session, limit=1000)
            assert {turn.status for turn in detail.context} == {"completed"}
            kept += len(detail.context) - 1
            assert (await worlds[0].context(session))[: len(begun)] == begun
            for world in worlds:  # what an engine holds now is that history, or none at all
                await world.turn(ask("last", conversation=session))
                assert world.engine.contexts[session] == await world.context(session)
        assert kept == done


@pytest.mark.parametrize("store", [True, False])
async def test_r06_turns_of_a_killed_server_count_no_more_once_it_is_back(url, store):
    async with servers(url, "a") as (a,):
        await limit(a, max_concurrent_turns=1)
        a.engine.auto = False
        await a.begin(ask("1", store=store))
        await die(a)
        ids = count(1000)
        back = await World.start(url, FakeEngine(), ids, clock=a.clock, replica="a")
        use = await use_of(back)
        assert (use.turns, use.minute_tokens) == (0, 0)
        await back.turn(ask("2", store=store))
        await back.stop()


@pytest.mark.parametrize("store", [True, False])
async def test_r06_turns_of_a_killed_server_count_no_more_once_its_lease_has_lapsed(url, store):
    async with servers(url) as (a, b):
        await limit(b, max_concurrent_turns=1)
        a.engine.auto = b.engine.auto = False
        await a.begin(ask("1", store=store))
        await die(a)
        await b.service.replica.beat()
        assert (await refusal_of(b, ask("2"))).code == "rate_limit_exceeded"
        b.clock.advance(LEASE_S)
        await b.service.replica.beat()
        turn = await b.begin(ask("3", store=store))
        assert (await use_of(b)).turns == 1, "those of the living count"
        b.engine.finish(turn.accepted.response_id)
        await finish(turn)
        assert (await use_of(b)).turns == 0
