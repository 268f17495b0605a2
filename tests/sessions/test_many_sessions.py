"""What is done for all sessions is done some at a time: each look is at a bounded number."""

import asyncio

import pytest

from engine.ipc.queries import GetResidency
from sessiond.domain import AttachmentId, TurnAccepted
from sessiond.sessions import housekeeping, quotas, replica
from sessiond.sessions.turn import EventLogs, stored_replay
from tests.fakes.fake_clock import FakeClock
from tests.harness.service import ANN, BOB, SOCKET, World, ask, settled, until

MANY = 7


@pytest.fixture
async def still(url, engine):
    """A world whose timers do nothing by themselves."""
    never = {"reap_every_s": 1e6, "heartbeat_s": 1e6}
    world = await World.start(url, engine, ticks=FakeClock(), **never)
    yield world
    await world.stop()


async def open_sessions(world, count=MANY, caller=ANN):
    return [
        (await world.turn(ask("hi"), caller=caller))[0].accepted.session_id for _ in range(count)
    ]


async def byte_seconds(world, user):
    return (await world.store.quotas.account(user)).use.byte_seconds


class TestResidency:
    async def test_sessions_are_asked_for_some_at_a_time_and_all_are_charged(
        self, still, engine, monkeypatch
    ):
        monkeypatch.setattr(quotas, "_AT_A_TIME", 3)
        meter = still.service.quotas.residency
        await open_sessions(still)
        await open_sessions(still, caller=BOB)
        still.ticks.advance(100)
        before = meter.looked_at
        await meter.sample()
        asked = [query.sessions for query in engine.asked if isinstance(query, GetResidency)]
        assert max(map(len, asked)) == 3
        assert sorted(name for names in asked for name in names) == sorted(engine.cached)
        since_s = meter.looked_at - before
        for user in ("ann", "bob"):
            held = sum(
                kept
                for session, kept in engine.cached.items()
                if still.service.live.get(session).user_id == user
            )
            assert await byte_seconds(still, user) == pytest.approx(held * since_s)

    async def test_what_an_answer_leaves_out_is_asked_for_again(self, still, engine):
        engine.residency_at_a_time = 2
        meter = still.service.quotas.residency
        await open_sessions(still)
        still.ticks.advance(100)
        await meter.sample()
        asked = [len(query.sessions) for query in engine.asked if isinstance(query, GetResidency)]
        assert asked == [7, 5, 3, 1]
        assert await byte_seconds(still, "ann") >= 100 * sum(engine.cached.values())

    async def test_many_users_are_charged_in_several_transactions(self, still, monkeypatch):
        sizes = []
        write = still.store.database.write

        async def noted(work, **options):
            sizes.append(len(work.keywords["byte_seconds"]))
            return await write(work, **options)

        users = {f"user_{number}": 1.0 for number in range(450)}
        for user in users:
            await still.store.quotas.set_quota(user, {}, 1.0)
        monkeypatch.setattr(still.store.database, "write", noted)
        await still.store.quotas.add_residency(users)
        assert sizes == [200, 200, 50]
        assert await byte_seconds(still, "user_449") == 1.0


async def test_a_heartbeat_looks_at_some_sessions_and_the_next_at_the_others(
    still, engine, monkeypatch
):
    monkeypatch.setattr(replica, "_CHECKED_PER_BEAT", 3)
    names = await open_sessions(still)
    asked = []

    async def taken(session_ids):
        asked.append(list(session_ids))
        return list(session_ids)

    monkeypatch.setattr(still.store.membership, "taken", taken)
    for _ in range(3):
        await still.service.replica.beat()
    assert list(map(len, asked)) == [3, 3, 1]
    assert sorted(name for some in asked for name in some) == sorted(names)
    assert len(still.service.live) == 0


async def test_others_go_on_while_a_socket_with_many_sessions_leaves(still, monkeypatch):
    monkeypatch.setattr(housekeeping, "_AT_A_TIME", 1)
    await open_sessions(still)
    held = []
    release = still.service.retention.release

    def noted(live):
        held.append(turns)
        release(live)

    monkeypatch.setattr(still.service.retention, "release", noted)
    turns = 0
    leaving = asyncio.create_task(still.service.housekeeping.detach(SOCKET))
    while not leaving.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(held) == MANY
    assert len(set(held)) == MANY, "each in a turn of the loop of its own"
    still.service.housekeeping.attach(AttachmentId("sock_2"))


@pytest.mark.parametrize("told", [1, 2])
async def test_all_of_a_socket_is_released_whoever_tells_that_it_left(
    still, engine, monkeypatch, told
):
    """Its reader and its writer may notice in one turn of the loop."""
    monkeypatch.setattr(housekeeping, "_AT_A_TIME", 2)
    await open_sessions(still)
    engine.auto = False
    turn = await still.begin(ask("a"))
    for _ in range(told):
        still.service.housekeeping.leave(SOCKET)
    await settled(asyncio.create_task(still.service.housekeeping.detach(SOCKET)))
    assert turn.ended.is_set()
    assert set(engine.cached.values()) == {0}


async def test_a_session_that_came_anew_while_its_old_socket_left_is_not_released(still, engine):
    session = (await open_sessions(still, 1))[0]
    engine.auto = False
    await still.begin(ask("a", conversation=session))
    still.service.housekeeping.leave(SOCKET)
    old = still.service.live.get(session)
    await until(lambda: not old.turn_lock.is_locked)
    still.service.retention.forget(old)
    again = await still.begin(ask("b", conversation=session), attachment=None)
    before = len(engine.commands)
    await still.service.housekeeping.detach(SOCKET)
    assert engine.commands[before:] == []
    assert still.service.retention.cold_count == 0
    engine.finish(again.accepted.response_id)


def test_replays_of_a_session_are_found_by_its_name_and_not_kept_longer():
    replays = EventLogs(ttl_s=60.0, max_bytes=10**6)
    for number in range(6):
        accepted = TurnAccepted(
            response_id=f"resp_{number}",
            session_id=f"conv_{number % 2}",
            message_id="msg",
            previous_response_id=None,
            model="m",
            instructions=None,
            created_at=1.0,
            request=ask("hi"),
        )
        replays.begin("ann", stored_replay(accepted, None))
        replays.end(accepted.response_id, now_s=float(number))
    replays.forget_session("conv_0")
    found = [number for number in range(6) if replays.find("ann", f"resp_{number}")]
    assert found == [1, 3, 5]
    replays.reap(63.0)
    assert len(replays) == 1
    replays.forget_session("conv_1")
    assert (len(replays), replays.size_bytes) == (0, 0)
