"""The end of a turn that the database would not take is stored when it takes things again."""

import pytest

from sessiond.store.errors import StoreError
from tests.harness.service import World, ask, finish
from tests.sessions.quota_words import refusal_of


def mark_as_failed(store):
    """As if a statement had failed just now."""
    store.database._failure = "down"  # noqa: SLF001 -- no statement fails at will on both databases


async def test_a_turn_that_could_not_be_marked_as_failed_is_marked_later(url, engine, monkeypatch):
    world = await World.start(url, engine)
    engine.auto = False
    turn = await world.begin(ask("hi"))
    name, lose = turn.accepted.response_id, world.store.abort_turn

    async def down(_row):
        mark_as_failed(world.store)
        raise StoreError("down")

    monkeypatch.setattr(world.store, "abort_turn", down)
    engine.fail(name, "internal_error")
    assert (await finish(turn)).status == "failed"
    for _ in range(2):
        await world.service.replica.beat()
        assert (await world.store.find_turn("ann", name)).status == "running"
    monkeypatch.setattr(world.store, "abort_turn", lose)
    await world.service.replica.beat()
    assert (await world.store.find_turn("ann", name)).status == "failed"
    assert (await world.store.quotas.account("ann")).use.turns == 0
    assert len(world.service.replica.pending_endings) == 0
    await world.stop()


async def test_one_that_ended_otherwise_meanwhile_is_not_tried_for_ever(url, engine, monkeypatch):
    world = await World.start(url, engine)
    engine.auto = False
    turn = await world.begin(ask("hi"))
    name, lose = turn.accepted.response_id, world.store.abort_turn

    async def lost_twice(row):
        await lose(row)
        raise StoreError("nobody knows whether it held")

    monkeypatch.setattr(world.store, "abort_turn", lost_twice)
    engine.fail(name, "internal_error")
    await finish(turn)
    monkeypatch.setattr(world.store, "abort_turn", lose)
    await world.service.replica.beat()
    assert len(world.service.replica.pending_endings) == 0
    await world.stop()


async def test_a_turn_that_was_refused_though_its_first_commit_held_is_ended(
    url, engine, monkeypatch
):
    world = await World.start(url, engine)
    first, _ = await world.turn(ask("1"))
    session, begin = first.accepted.session_id, world.store.begin_turn

    async def held(turn, **parts):
        await begin(turn, **parts)
        held.id = turn.id
        raise StoreError("nobody knows whether it held")

    monkeypatch.setattr(world.store, "begin_turn", held)
    assert (await refusal_of(world, ask("2", conversation=session))).code == "internal_error"
    assert (await world.store.find_turn("ann", held.id)).status == "running"
    await world.service.replica.beat()
    assert (await world.store.find_turn("ann", held.id)).status == "failed"
    assert (await world.store.quotas.account("ann")).use.turns == 0
    monkeypatch.setattr(world.store, "begin_turn", begin)
    _, finished = await world.turn(ask("3", conversation=session))
    assert finished.status == "completed"
    await world.stop()


@pytest.mark.parametrize("ending", ["fails", "is kept"])
async def test_what_a_volatile_turn_had_reserved_is_given_back_later(
    url, engine, monkeypatch, ending
):
    world = await World.start(url, engine)
    engine.auto = False
    turn = await world.begin(ask("hi", store=False))
    name = turn.accepted.response_id
    assert (await world.store.quotas.account("ann")).use.turns == 1

    async def down(*_):
        mark_as_failed(world.store)
        raise StoreError("down")

    with monkeypatch.context() as failing:
        failing.setattr(world.store, "_settle", down)
        if ending == "fails":
            engine.fail(name, "internal_error")
        else:
            engine.begin(name)
            engine.finish(name)
        await finish(turn)
        assert (await world.store.quotas.account("ann")).use.turns == 1
    await world.service.replica.beat()
    assert (await world.store.quotas.account("ann")).use.turns == 0
    assert len(world.service.replica.pending_endings) == 0
    await world.stop()


async def test_what_a_volatile_turn_had_reserved_is_given_back_once_when_it_is_kept_at_last(
    url, engine, monkeypatch
):
    world = await World.start(url, engine)
    engine.auto = False
    turn = await world.begin(ask("hi", store=False))
    name, tries = turn.accepted.response_id, []
    settle = world.store._settle  # noqa: SLF001 -- the one part of a transaction that fails here

    async def settled_but(*how):
        tries.append(how)
        if len(tries) != 2:
            await settle(*how)
        if len(tries) < 3:
            raise StoreError("nobody knows whether it held")

    monkeypatch.setattr(world.store, "_settle", settled_but)
    monkeypatch.setattr("sessiond.sessions.stream._RETRIES_S", 60.0)  # however busy the machine is
    engine.begin(name)
    engine.finish(name)
    finished = await finish(turn)
    assert (finished.status, len(tries)) == ("completed", 3)
    use = (await world.store.quotas.account("ann")).use
    assert (use.turns, use.total_tokens) == (0, tries[0][2])
    assert use.day_tokens == use.total_tokens
    await world.stop()
