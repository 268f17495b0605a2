"""Sessions that are not stored: they live in memory and die with their socket."""

import pytest
import sqlalchemy as sa

from engine.ipc.messages import CloseContext, ForkContext, SetContext
from sessiond.domain import AttachmentId
from sessiond.errors import RequestError
from sessiond.store.schema import metadata
from tests.harness.service import ANN, BOB, SOCKET, World, ask, finish, items

OTHER = AttachmentId("sock_2")


def secret(text, **fields):
    return ask(text, store=False, **fields)


async def refused(work, code, param=None):
    with pytest.raises(RequestError) as caught:
        await work
    assert (caught.value.code, caught.value.param) == (code, param or caught.value.param)


async def rows_in_memory(world):
    async def work(connection):
        counts = {}
        for table in metadata.sorted_tables:
            select = sa.select(sa.func.count()).select_from(table)
            counts[table.name] = await connection.scalar(select)
        return counts

    return await world.store.memory.read(work)


async def test_nothing_of_it_is_in_any_file(world, engine, tmp_path):
    turn, _ = await world.turn(secret("xyzzy", instructions="plugh"))
    session = turn.accepted.session_id
    turn, finished = await world.turn(secret("frobozz", conversation=session))
    await world.service.conversations.add_items(ANN, session, items("zorkmid"))
    assert turn.accepted.request.store is False
    response = await world.service.inspector.response(ANN, turn.accepted.response_id)
    assert response.finished.text == finished.text
    await world.service.housekeeping.detach(SOCKET)
    written = b"".join(path.read_bytes() for path in tmp_path.glob("sessiond.db*"))
    told = (b"xyzzy", b"plugh", b"frobozz", b"zorkmid", session.encode())
    assert [word for word in told if word in written] == []
    assert turn.accepted.response_id.encode() not in written


async def test_it_goes_on_forks_and_is_inspected_like_any(world, engine):
    first, _ = await world.turn(secret("a"))
    session = first.accepted.session_id
    second, finished = await world.turn(ask("b", previous_response_id=first.accepted.response_id))
    assert second.accepted.session_id == session
    assert finished.usage.reused_tokens > 0
    fork, _ = await world.turn(ask("c", previous_response_id=first.accepted.response_id))
    assert fork.accepted.session_id != session
    assert fork.accepted.request.store is False
    assert len(engine.sent(ForkContext)) == 1, "a fork is what its parent is"
    asked = await world.service.openings.fork(ANN, session)
    view = await world.service.inspector.session(ANN, session)
    assert len({turn.response_id for turn in view.turns}) == 2
    assert (await world.service.inspector.page(ANN, 10, None)).sessions == ()
    engine.lose()
    await world.turn(ask("d", conversation=session))
    assert all(command.volatile for command in engine.sent(SetContext)[1:])
    assert await world.context(asked.id) == (await world.context(session))[: asked.tokens_kept]


async def test_it_dies_with_the_last_socket(world, engine):
    world.service.housekeeping.attach(OTHER)
    turn, _ = await world.turn(secret("a"))
    session = turn.accepted.session_id
    await world.turn(ask("b", conversation=session), attachment=OTHER)
    await world.service.housekeeping.detach(SOCKET)
    assert session in engine.contexts
    await world.service.housekeeping.detach(OTHER)
    assert CloseContext(session=session, erase=True) in engine.commands
    response = turn.accepted.response_id
    await refused(world.begin(ask("c", conversation=session)), "conversation_not_found")
    await refused(
        world.begin(ask("c", previous_response_id=response)), "previous_response_not_found"
    )
    await refused(world.service.inspector.response(ANN, response), "previous_response_not_found")
    await refused(world.service.inspector.session(ANN, session), "conversation_not_found")
    counts = await rows_in_memory(world)
    del counts["users"]
    assert set(counts.values()) == {0}
    assert list(world.service.live) == []


async def test_a_fork_outlives_the_session_that_it_was_cut_from(world, engine):
    world.service.housekeeping.attach(OTHER)
    turn, _ = await world.turn(secret("a"))
    await world.turn(secret("b", conversation=turn.accepted.session_id))
    fork, _ = await world.turn(
        ask("c", previous_response_id=turn.accepted.response_id), attachment=OTHER
    )
    await world.service.housekeeping.detach(SOCKET)
    engine.lose()
    await world.turn(ask("d", conversation=fork.accepted.session_id), attachment=OTHER)
    session = fork.accepted.session_id
    assert await world.context(session) == engine.contexts[session]
    await world.service.housekeeping.detach(OTHER)
    assert (await rows_in_memory(world))["turns"] == 0


async def test_over_http_it_dies_with_its_request(world, engine):
    turn, finished = await world.turn(secret("a"), attachment=None)
    assert finished.status == "completed"
    assert turn.accepted.session_id not in engine.contexts
    response = turn.accepted.response_id
    await refused(world.service.inspector.response(ANN, response), "previous_response_not_found")


async def test_a_running_turn_dies_with_the_socket(world, engine):
    engine.auto = False
    turn = await world.begin(secret("a"))
    await world.service.housekeeping.detach(SOCKET)
    assert (await finish(turn)).reason == "cancelled"
    assert turn.accepted.session_id not in engine.contexts
    assert (await rows_in_memory(world))["turns"] == 0


async def test_a_conversation_is_stored_from_the_first_turn_on_or_never(world):
    stored, _ = await world.turn(ask("a"))
    kept_out, _ = await world.turn(secret("a"))
    for turn, wrong in ((stored, False), (kept_out, True)):
        for place in (
            {"conversation": turn.accepted.session_id},
            {"previous_response_id": turn.accepted.response_id},
        ):
            await refused(world.begin(ask("b", store=wrong, **place)), "invalid_value", "store")
            _, finished = await world.turn(ask("b", store=not wrong, **place))
            assert finished.status == "completed"


async def test_others_do_not_find_it(world):
    turn, _ = await world.turn(secret("a"))
    await refused(
        world.begin(ask("b", conversation=turn.accepted.session_id), caller=BOB),
        "conversation_not_found",
    )
    await refused(
        world.service.inspector.response(BOB, turn.accepted.response_id),
        "previous_response_not_found",
    )


async def test_it_does_not_outlive_the_server(url, engine):
    world = await World.start(url, engine)
    turn, _ = await world.turn(secret("a"))
    await world.stop()
    world = await World.start(url, engine)
    await refused(
        world.begin(ask("b", conversation=turn.accepted.session_id)), "conversation_not_found"
    )
    await world.stop()
