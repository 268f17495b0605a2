"""Requests that come twice: by a conversation's name, or an idempotency key."""

from itertools import count

import pytest

from sessiond.errors import RequestError
from sessiond.sessions.turn import Turn
from tests.harness.service import ANN, BOB, SOCKET, World, ask, finish, items, settled


async def refused(work, code, param=None):
    with pytest.raises(RequestError) as caught:
        await work
    assert (caught.value.code, caught.value.param) == (code, param or caught.value.param)


async def once(world, request, key="k", *, caller=ANN, attachment=SOCKET):
    return await world.service.turns.bind_once(
        caller, request, key, attachment=attachment, lane=None
    )


async def run_once(world, request, key="k", **where):
    """A new turn, to its end."""
    bound = await once(world, request, key, **where)
    assert isinstance(bound, Turn)
    turn = await world.service.turns.run(bound)
    await finish(turn)
    return turn.accepted.response_id


async def test_the_same_request_with_the_same_key_gives_the_same_response(world, engine):
    first = await run_once(world, ask("a", metadata={"x": "1", "y": "2"}))
    again = ask("a", metadata={"y": "2", "x": "1"})
    assert await once(world, again) == first
    assert await once(world, again, attachment=None) == first
    assert len(engine.turns) == 1
    replay = await world.service.followers.follow(ANN, first)
    assert replay.accepted.response_id == first


async def test_another_request_with_the_same_key_is_a_conflict(world):
    await run_once(world, ask("a"))
    for other in (
        ask("b"),
        ask("a", temperature=0.5),
        ask("a", instructions="unset"),
        ask("a", conversation="c"),
    ):
        await refused(once(world, other), "idempotency_conflict", "idempotency_key")
    assert await run_once(world, ask("b"), "k2")


async def test_a_request_that_comes_again_while_the_first_runs_follows_it(world, engine):
    engine.auto = False
    bound = await once(world, ask("a"))
    assert await once(world, ask("a")) == bound.response_id
    turn = await world.service.turns.run(bound)
    assert await once(world, ask("a")) == bound.response_id
    engine.finish(bound.response_id)
    await finish(turn)


async def test_of_many_at_once_one_runs(world, engine):
    found = await settled(*(once(world, ask("a"), attachment=None) for _ in range(20)))
    runs = [one for one in found if isinstance(one, Turn)]
    assert len(runs) == 1
    assert {one for one in found if isinstance(one, str)} <= {runs[0].response_id}
    await finish(await world.service.turns.run(runs[0]))
    assert len(engine.turns) == 1
    assert len(list(world.service.live)) == 1


async def test_a_users_key_is_nobody_elses(world):
    first = await run_once(world, ask("a"))
    second = await run_once(world, ask("a"), caller=BOB)
    assert first != second
    await run_once(world, ask("b"), "k3", caller=BOB)


async def test_a_request_that_was_refused_or_failed_may_be_tried_again(world, engine):
    bound = await once(world, ask("a" * 10**6, truncation="disabled"))
    await refused(world.service.turns.run(bound), "context_length_exceeded")
    bound = await once(world, ask("a"))
    assert isinstance(bound, Turn)
    await world.service.turns.drop(bound)
    engine.auto = False
    bound = await once(world, ask("a"))
    turn = await world.service.turns.run(bound)
    engine.fail(bound.response_id, "internal_error")
    await finish(turn)
    engine.auto = True
    first = await run_once(world, ask("a"))
    await world.service.followers.forget(ANN, first)
    assert await run_once(world, ask("a")) != first


async def test_a_key_outlives_the_server_and_is_forgotten_in_time(url, engine):
    ids = count(1)
    world = await World.start(url, engine, ids)
    first = await run_once(world, ask("a"))
    await world.stop()
    world = await World.start(url, engine, ids, idempotency_ttl_s=100.0)
    assert await once(world, ask("a")) == first
    world.clock.advance(101)
    second = await run_once(world, ask("b"))
    assert second != first
    world.clock.advance(1000)

    await world.service.idempotency.reap()
    assert await world.store.used_keys.find("ann", "k", 0.0) is None
    await world.stop()


async def test_a_key_of_a_turn_that_a_crash_took_is_free(world):
    bound = await once(world, ask("a"))
    world.service.runner.drop(bound)  # as if the server had died before it was stored
    assert await run_once(world, ask("a")) != bound.response_id


async def test_a_turn_that_is_not_stored_takes_no_key(world):
    await refused(once(world, ask("a", store=False)), "invalid_value", "idempotency_key")
    assert list(world.service.live) == []


class TestNames:
    async def test_a_conversation_is_opened_once_by_its_name(self, world):
        first = await world.service.openings.create(ANN, items("a"), {"x": "y"}, name="mine")
        again = await world.service.openings.create(ANN, items("a"), {}, name="mine")
        assert again == first
        assert len((await world.service.conversations.list_items(ANN, "mine")).items) == 1
        turn, _ = await world.turn(ask("b", conversation="mine"))
        assert turn.accepted.session_id == first.id
        for name in ("mine", first.id):
            assert (await world.service.inspector.session(ANN, name)).id == first.id
            assert (await world.service.conversations.get(ANN, name)).id == first.id
        await world.service.conversations.update(ANN, "mine", {"z": "1"})
        await world.service.settings.update(ANN, "mine", retention="hold")
        await world.service.conversations.reset(ANN, "mine")
        assert (await world.service.openings.fork(ANN, "mine")).id != first.id
        await world.service.conversations.close(ANN, "mine")
        await refused(world.service.conversations.get(ANN, "mine"), "conversation_not_found")

    async def test_equal_names_of_two_users_are_two_conversations(self, world):
        anns = await world.service.openings.create(ANN, items("secret"), {}, name="mine")
        await refused(world.service.conversations.get(BOB, "mine"), "conversation_not_found")
        await refused(world.service.conversations.get(BOB, anns.id), "conversation_not_found")
        bobs = await world.service.openings.create(BOB, (), {}, name="mine")
        assert bobs.id != anns.id
        assert (await world.service.conversations.list_items(BOB, "mine")).items == ()

    async def test_of_many_openings_at_once_all_get_the_same(self, world):
        views = await settled(
            *(world.service.openings.create(ANN, (), {}, name="mine") for _ in range(20))
        )
        assert len({view.id for view in views}) == 1
        assert len((await world.service.inspector.page(ANN, 100, None)).sessions) == 1

    async def test_a_name_is_free_again_a_day_after_its_conversation_was_deleted(self, world):
        await world.service.openings.create(ANN, (), {}, name="mine")
        await world.service.conversations.close(ANN, "mine")
        create = world.service.openings.create
        await refused(create(ANN, (), {}, name="mine"), "idempotency_conflict", "id")
        world.clock.advance(24 * 3600 + 1)
        other = await create(ANN, (), {})
        await world.service.conversations.close(ANN, other.id)
        assert await create(ANN, (), {}, name="mine")


class TestConversationsByKey:
    async def test_the_same_request_opens_one(self, world):
        create = world.service.openings.create
        first = await create(ANN, items("a"), {}, key="k")
        assert await create(ANN, items("a"), {}, key="k") == first
        await refused(create(ANN, items("b"), {}, key="k"), "idempotency_conflict")
        assert (await create(BOB, items("a"), {}, key="k")).id != first.id
        await world.service.conversations.close(ANN, first.id)
        assert (await create(ANN, items("a"), {}, key="k")).id != first.id

    async def test_a_key_of_an_opening_that_was_refused_is_free(self, world):
        create = world.service.openings.create
        long = items("a" * 10**6)
        await refused(create(ANN, long, {}, key="k"), "context_length_exceeded")
        assert await create(ANN, items("a"), {}, key="k")

    async def test_at_once_one_is_opened(self, world):
        create = world.service.openings.create
        found = await settled(*(create(ANN, (), {}, key="k") for _ in range(10)))
        views = [view for view in found if not isinstance(view, RequestError)]
        assert len({view.id for view in views}) == 1
        assert len((await world.service.inspector.page(ANN, 100, None)).sessions) == 1


async def test_a_turn_and_a_conversation_by_one_key_are_two_requests(world):
    await run_once(world, ask("a"))
    await refused(
        world.service.openings.create(ANN, items("a"), {}, key="k"), "idempotency_conflict"
    )
