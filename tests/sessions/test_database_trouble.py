"""Turns and their database: what is held while they are written, and what happens when it fails."""

import asyncio
import sqlite3
import time
from contextlib import asynccontextmanager

import msgspec
import pytest

from sessiond.errors import RequestError
from sessiond.sessions import stream
from sessiond.store import database, migrate
from tests.harness.service import World, ask, finish, rendered, settled, until
from tests.ipc.loops import INFO
from tests.sessions.fake_engine import FakeEngine

STREAMS = 50
LARGE = "x" * 4000  # of which no part fits where there still is room in a full file
BIG_INFO = msgspec.structs.replace(INFO, max_model_len=65_536, total_blocks=65_536)


async def test_t50_fifty_streams_and_one_connection(url, engine):
    """A turn holds none while it is written, so that others always get theirs."""
    world = await World.start(url, engine, connections=1)
    engine.auto = False
    turns = await asyncio.gather(*(world.begin(ask(str(n)), lane=str(n)) for n in range(STREAMS)))
    for turn in turns:
        engine.begin(turn.accepted.response_id)
        engine.say(turn.accepted.response_id)
    await until(lambda: world.store.connections_in_use == 0)  # a heartbeat may have one
    async with asyncio.timeout(60):
        for turn in turns[:5]:
            assert await world.store.find_session("ann", turn.accepted.session_id) is not None
    for turn in turns:
        engine.finish(turn.accepted.response_id)
    ended = await asyncio.gather(*map(finish, turns))
    assert {finished.status for finished in ended} == {"completed"}
    await until(lambda: world.store.connections_in_use == 0)  # a heartbeat may have one
    await world.stop()


@pytest.fixture
async def large_world(trouble_url):
    world = await World.start(trouble_url, FakeEngine(BIG_INFO))
    yield world
    await world.stop()


@pytest.fixture
def trouble_url(database_kind, request, tmp_path):
    """A database that may fail without harm to other tests."""
    if database_kind == "sqlite":
        path = tmp_path / "full.db"
        path.write_bytes(request.getfixturevalue("migrated_file").read_bytes())
        return f"sqlite+aiosqlite:///{path}"
    server = request.getfixturevalue("own_postgres")
    url = server.url(server.create())
    migrate.upgrade(url)
    return url


@pytest.fixture(scope="module")
def own_postgres(postgres):
    from tests.store.postgres import running_postgres

    with running_postgres() as server:
        yield server


@asynccontextmanager
async def trouble(world, database_kind, request):
    """The disk is full, or the server is away, until the block ends."""
    if database_kind == "sqlite":
        await limit_pages(world.store, 1)
        yield
        await limit_pages(world.store, 2**30)
    else:
        server = request.getfixturevalue("own_postgres")
        await asyncio.to_thread(server.stop, at_once=True)
        yield
        await asyncio.to_thread(server.start)


async def limit_pages(store, pages):
    async def work(connection):
        await connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    await store.database.write(work)


async def in_flight(world, sessions):
    """A turn in each session that has said much."""
    turns = [await world.begin(ask("more", conversation=session)) for session in sessions]
    for turn in turns:
        world.engine.begin(turn.accepted.response_id)
        world.engine.say(turn.accepted.response_id, LARGE)
    return turns


async def test_turns_fail_clearly_while_the_database_does_and_go_on_after_it(
    large_world, database_kind, request, monkeypatch
):
    monkeypatch.setattr(stream, "_COMMIT_PAUSES_S", (0.01, None))
    world, engine = large_world, large_world.engine
    opened = [await world.turn(ask(f"hi {n}"), lane=str(n)) for n in range(4)]
    sessions = [turn.accepted.session_id for turn, _ in opened]
    before = [await world.context(session) for session in sessions]
    engine.auto = False
    turns = await in_flight(world, sessions)
    async with trouble(world, database_kind, request):
        for turn in turns[:2]:
            engine.finish(turn.accepted.response_id)
            finished = await finish(turn)
            assert (finished.status, finished.error.code) == ("failed", "internal_error")
            assert "could not be stored" in finished.error.message
        with pytest.raises(RequestError) as error:
            await world.begin(ask(LARGE), lane="new")
        assert (error.value.code, error.value.status) == ("internal_error", 500)
        assert world.service.replica.database_failure is not None
    for turn in turns[2:]:
        engine.finish(turn.accepted.response_id)
        assert (await finish(turn)).status == "completed"
    await world.service.replica.beat()
    assert world.service.replica.database_failure is None
    engine.auto = True
    for number, session in enumerate(sessions):
        kept = rendered(("user", "more"), ("assistant", LARGE)) if number >= 2 else []
        _, finished = await world.turn(ask("b", conversation=session))
        right = before[number] + kept + rendered(("user", "b"), ("assistant", finished.text))
        assert await world.context(session) == engine.contexts[session] == right


async def test_a_short_failure_is_waited_out(large_world, database_kind, request, monkeypatch):
    monkeypatch.setattr(stream, "_COMMIT_PAUSES_S", (0.05,) * 200)
    monkeypatch.setattr(stream, "_RETRIES_S", 60.0)
    world, engine = large_world, large_world.engine
    turn, _ = await world.turn(ask("hi"))
    engine.auto = False
    turns = await in_flight(world, [turn.accepted.session_id])
    async with trouble(world, database_kind, request):
        engine.finish(turns[0].accepted.response_id)
        told = asyncio.create_task(finish(turns[0]))
        await settled(world.begin(ask(LARGE), lane="new"))  # refused: it was tried meanwhile
        assert not told.done()
    assert (await told).status == "completed"
    assert (await world.store.find_turn("ann", turns[0].accepted.response_id)).is_checkpoint


async def test_heartbeats_find_that_a_database_is_away_and_that_it_is_well_again(
    trouble_url, database_kind, request
):
    world = await World.start(trouble_url, FakeEngine(BIG_INFO), heartbeat_s=0.02)
    async with trouble(world, database_kind, request):
        if database_kind == "sqlite":  # a full file is found by who wants more of it
            await settled(world.begin(ask(LARGE)))
        await until(lambda: world.service.replica.database_failure is not None)
    await until(lambda: world.service.replica.database_failure is None)
    _, finished = await world.turn(ask(LARGE))
    assert finished.status == "completed"
    await world.stop()


@pytest.mark.parametrize("database_kind", ["sqlite"])
async def test_r05_a_turn_that_ends_while_the_file_is_locked_fails_in_bounded_time(
    large_world, trouble_url, monkeypatch
):
    """Its end comes after one wait for the lock, however many turns end meanwhile."""
    monkeypatch.setattr(database, "LOCK_WAIT_S", 1.0)
    world, engine = large_world, large_world.engine
    opened = [await world.turn(ask(f"hi {n}"), lane=str(n)) for n in range(6)]
    sessions = [turn.accepted.session_id for turn, _ in opened]
    before = [list(engine.contexts[session]) for session in sessions]
    engine.auto = False
    turns = await in_flight(world, sessions)
    other = sqlite3.connect(trouble_url.partition(":///")[2], isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    started_s = time.monotonic()
    for turn in turns:
        engine.finish(turn.accepted.response_id)
    ended = await asyncio.gather(*map(finish, turns))
    took_s = time.monotonic() - started_s
    other.execute("ROLLBACK")
    other.close()
    assert {(one.status, one.error.code) for one in ended} == {("failed", "internal_error")}
    assert took_s < 6.0, "far less than a wait for each write, and for each retry"
    assert [engine.contexts[session] for session in sessions] == before, "rolled back"
    await world.service.replica.beat()
    engine.auto = True
    for session in sessions:
        _, finished = await world.turn(ask("b", conversation=session))
        assert finished.status == "completed"
