"""Deleting a session deletes what it said: in SQL, and its KV on the device."""

import asyncio

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from engine.ipc.messages import CloseContext, SetContext
from engine.ipc.queries import GetStats, TierInfo
from sessiond.store.schema import items, metadata, sessions, system_prompts, turns
from tests.harness.service import ANN, BOB, SOCKET, World, ask, finish, until
from tests.harness.service import items as messages
from tests.sessions.rig import Rig, StepGate, greedy


async def rows(world, table):
    async def work(connection):
        return (await connection.execute(sa.select(table))).all()

    return await world.store.database.read(work)


async def counts(world):
    return {
        table.name: len(await rows(world, table))
        for table in metadata.sorted_tables
        if table.name in {"turns", "items", "summaries"}
    }


async def told(world, *texts, caller=ANN, **where):
    for text in texts:
        turn, _ = await world.turn(ask(text, **where), caller=caller)
        where = {"conversation": turn.accepted.session_id}
    return turn.accepted.session_id, turn.accepted.response_id


async def test_text_and_ids_are_gone_from_sql(world, engine):
    session, _ = await told(world, "a", "b", instructions="be brief")
    await world.service.conversations.update(ANN, session, {"secret": "x"})
    engine.auto = False
    lost = await world.begin(ask("c", conversation=session))
    engine.fail(lost.accepted.response_id, "internal_error")
    await lost.ended.wait()
    await world.service.conversations.close(ANN, session)
    assert await counts(world) == {"turns": 0, "items": 0, "summaries": 0}
    (tombstone,) = await rows(world, sessions)
    assert (tombstone.metadata, tombstone.tip_id) == ({}, None)
    (system_prefix,) = await rows(world, system_prompts)
    assert (system_prefix.text, system_prefix.token_ids) == (None, b"")
    view = await world.service.inspector.session(ANN, session)
    assert (view.state, view.turns, view.instructions) == ("closed", (), None)


async def test_what_a_fork_is_built_on_stays_until_the_last_goes(world, engine):
    session, first = await told(world, "a")
    fork, _ = await told(world, "b", previous_response_id=first)
    assert fork == session  # the tip: it goes on
    other, _ = await told(world, "c", previous_response_id=first)
    await told(world, "d", conversation=other)
    context = await world.context(other)
    await world.service.conversations.close(ANN, session)
    assert await world.context(other) == context
    assert len(await rows(world, turns)) == 3
    assert "b" not in [item.text for item in await rows(world, items)]
    engine.lose()
    await told(world, "e", conversation=other)
    assert await world.context(other) == engine.contexts[other]
    await world.service.conversations.close(ANN, other)
    assert await counts(world) == {"turns": 0, "items": 0, "summaries": 0}


async def test_a_fork_that_has_said_nothing_yet_keeps_what_it_stands_on(world, engine):
    session, _ = await told(world, "a", "b")
    fork = await world.service.openings.fork(ANN, session)
    context = await world.context(fork.id)
    await world.service.conversations.close(ANN, session)
    assert await world.context(fork.id) == context
    await told(world, "c", conversation=fork.id)


async def test_others_and_other_conversations_keep_theirs(world):
    mine, _ = await told(world, "a")
    other, _ = await told(world, "a")
    bobs, _ = await told(world, "a", caller=BOB)
    await world.service.conversations.close(ANN, mine)
    assert await world.context(other)
    assert await world.context(bobs, BOB)
    assert len(await rows(world, turns)) == 2


async def test_a_tombstone_is_gone_after_a_day(world):
    session, _ = await told(world, "a")
    await world.service.conversations.close(ANN, session)
    other, _ = await told(world, "b")
    world.clock.advance(24 * 3600 + 1)
    await world.service.conversations.close(ANN, other)
    assert [row.id for row in await rows(world, sessions)] == [other]


async def test_the_engine_is_told_to_erase_what_it_holds(world, engine):
    session, _ = await told(world, "a")
    await world.service.conversations.close(ANN, session)
    assert engine.sent(CloseContext) == [CloseContext(session=session, erase=True)]


async def test_an_engine_that_has_forgotten_the_ids_is_told_them_first(world, engine):
    session, _ = await told(world, "a")
    context = await world.context(session)
    world.service.retention.forget(world.service.live.get(session))
    engine.commands.clear()
    await world.service.conversations.close(ANN, session)
    assert [type(command) for command in engine.commands] == [SetContext, CloseContext]
    assert engine.commands[0].ids == context
    assert engine.commands[1].erase


async def test_with_the_engine_away_a_session_is_deleted_all_the_same(world, engine):
    session, _ = await told(world, "a")
    engine.lose(back=False)
    await world.service.conversations.close(ANN, session)
    assert await counts(world) == {"turns": 0, "items": 0, "summaries": 0}
    engine.come_back()


@pytest.fixture
async def disk_world(url, engine):
    disk = TierInfo(name="disk", bytes=2**20)
    engine.info = replace(engine.info, tiers=(disk,))
    world = await World.start(url, engine, reap_every_s=0.01)
    yield world
    await world.stop()


@pytest.mark.parametrize("is_away", [True, False], ids=["away", "lost behind it"])
async def test_an_engine_that_is_new_erases_what_the_last_may_have_left_on_disk(
    disk_world, engine, is_away
):
    world = disk_world
    session, _ = await told(world, "a")
    context = await world.context(session)
    if is_away:
        engine.lose(back=False)
    else:
        engine.hangs = True
    await world.service.conversations.close(ANN, session)
    assert await counts(world) == {"turns": 0, "items": 0, "summaries": 0}
    if not is_away:
        engine.hangs = False
        engine.lose(back=False)
    engine.commands.clear()
    engine.come_back()
    await until(lambda: engine.commands)
    assert [type(command) for command in engine.commands] == [SetContext, CloseContext]
    assert engine.commands[0].ids == context
    assert engine.commands[1].erase
    await until(lambda: not world.service.housekeeping.owed_erasures)
    assert len(engine.commands) == 2


async def test_items_of_a_conversation_without_a_turn_go_too(world):
    created = await world.service.openings.create(ANN, messages("a"), {})
    await world.service.conversations.close(ANN, created.id)
    assert await counts(world) == {"turns": 0, "items": 0, "summaries": 0}


@pytest.fixture
async def real(url):
    rig = Rig(idle_prefill=False)
    await rig.engine.start()
    world = await World.start(url, rig.engine)
    yield world, rig
    await world.service.housekeeping.detach(SOCKET)
    await world.stop()
    await rig.engine.stop()


@pytest.mark.parametrize("forgotten", [False, True])
async def test_no_slot_of_the_device_holds_anything_of_it(real, forgotten):
    world, rig = real
    turn, _ = await world.turn(greedy("a secret of ours " * 5))
    turn, _ = await world.turn(greedy("more", conversation=turn.accepted.session_id))
    session = turn.accepted.session_id
    if forgotten:
        await world.service.housekeeping.detach(SOCKET)
        live = world.service.live.get(session)
        world.service.retention.forget(live)
        assert (await rig.engine.ask(GetStats())).cached_blocks
    await world.service.conversations.close(ANN, session)
    stats = await rig.engine.ask(GetStats())
    assert (stats.cached_blocks, stats.active_blocks) == (0, 0)
    if not forgotten:
        assert not any(rig.model.slots)
    _, again = await world.turn(greedy("a secret of ours " * 5))
    assert again.usage.cached_tokens == 0


async def test_what_was_rewound_or_lost_is_erased_too(real):
    world, rig = real
    first, _ = await world.turn(greedy("hello there " * 5))
    session = first.accepted.session_id
    await world.turn(greedy("a secret of ours " * 5, conversation=session))
    await world.service.conversations.reset(ANN, session, first.accepted.response_id)
    rig.model.gate = StepGate(4)
    steps = rig.model.steps
    lost = await world.begin(greedy("another secret " * 12, conversation=session))
    await until(lambda: rig.model.steps >= steps + 4)
    lost.cancel(keep=False)
    rig.model.gate.open()
    await finish(lost)
    assert (await rig.engine.ask(GetStats())).cached_blocks
    await world.service.conversations.close(ANN, session)
    stats = await rig.engine.ask(GetStats())
    assert (stats.cached_blocks, stats.active_blocks) == (0, 0)


async def test_what_was_not_stored_leaves_no_kv_either(real):
    world, rig = real
    turn, _ = await world.turn(greedy("a secret of ours " * 5, store=False))
    rig.model.gate = StepGate(4)
    steps = rig.model.steps
    session = turn.accepted.session_id
    cut = await world.begin(greedy("another secret " * 12, conversation=session))
    await until(lambda: rig.model.steps >= steps + 4)
    leaving = asyncio.create_task(world.service.housekeeping.detach(SOCKET))
    await asyncio.sleep(0)
    rig.model.gate.open()
    await leaving
    assert (await finish(cut)).reason == "cancelled"
    async with asyncio.timeout(60):  # what the turn's end has still to write comes first
        while (stats := await rig.engine.ask(GetStats())).cached_blocks:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert stats.active_blocks == 0
