"""Lists of sessions: by state and user, page by page, at a cost that does not grow with them."""

import contextlib
from dataclasses import replace

import pytest
import sqlalchemy as sa

from engine.ipc.queries import GetContexts, GetStored
from sessiond.domain import EVERYBODY, SessionFilter
from sessiond.errors import RequestError
from tests.harness.service import ANN, BOB, World, ask

ADMIN = replace(ANN, user_id="root", is_admin=True)


async def one(world, text, **where):
    return (await world.turn(ask(text), **where))[0].accepted.session_id


async def listed(world, caller=ANN, limit=2, **wanted):
    """All pages, as a client walks through them."""
    found, after = [], None
    while True:
        page = await world.service.inspector.page(caller, limit, after, SessionFilter(**wanted))
        assert len(page.sessions) <= limit
        found += page.sessions
        if not page.has_more:
            return found
        after = page.last_id


@pytest.fixture
async def all_states(world, engine):
    """A session in each state, and ids of them by state."""
    engine.has_disk_tier = True
    closed = await one(world, "closed")
    await world.service.conversations.close(ANN, closed)
    cold = await one(world, "cold", attachment=None)
    await world.service.settings.park(ANN, parked := await one(world, "parked"))
    idle = await one(world, "idle")
    new = (await world.service.openings.create(ANN, (), {})).id
    engine.auto = False
    turn = await world.begin(ask("running"))
    world.service.retention.release(world.service.live.get(cold))
    return {
        "closed": [closed],
        "cold": [cold],
        "parked": [parked],
        "idle": [idle],
        "new": [new],
        "running": [turn.accepted.session_id],
    }


@pytest.mark.parametrize("limit", [1, 2, 10])
async def test_each_state_lists_its_sessions_and_no_others(world, all_states, limit):
    for state, ids in all_states.items():
        found = await listed(world, limit=limit, state=state)
        assert [view.id for view in found] == ids, state
        assert {view.state for view in found} == {state}
    opened = [view.id for view in await listed(world, limit=limit)]
    assert sorted(opened) == sorted(
        session for state, ids in all_states.items() if state != "closed" for session in ids
    )


async def test_pages_of_a_state_have_each_once_and_the_latest_first(world):
    sessions = [await one(world, f"number {number}") for number in range(7)]
    found = await listed(world, limit=3, state="idle")
    assert [view.id for view in found] == sessions[::-1]


async def test_a_row_of_a_list_is_what_the_session_says_of_itself(world, all_states):
    for state in all_states:
        (row,) = await listed(world, state=state)
        alone = await world.service.inspector.session(ANN, row.id)
        assert row == replace(alone, turns=())


async def test_a_lost_engine_leaves_no_idle_session(world, engine):
    session = await one(world, "hi")
    engine.lose()
    assert await listed(world, state="idle") == []
    assert [view.id for view in await listed(world, state="cold")] == [session]


async def test_only_an_admin_lists_others(world):
    anns, bobs = await one(world, "a"), await one(world, "b", caller=BOB)
    assert [view.id for view in await listed(world)] == [anns]
    assert [view.id for view in await listed(world, caller=ADMIN, user_id="bob")] == [bobs]
    everybodys = await listed(world, caller=ADMIN, limit=1, user_id=EVERYBODY)
    assert [view.id for view in everybodys] == [bobs, anns]
    assert [view.user for view in everybodys] == ["bob", "ann"]
    assert [v.id for v in await listed(world, caller=ADMIN, user_id="*", state="idle")] == [
        bobs,
        anns,
    ]
    for name in ("bob", EVERYBODY, "nobody"):
        with pytest.raises(RequestError) as refused:
            await listed(world, user_id=name)
        assert (refused.value.code, refused.value.param) == ("permission_denied", "user")


@contextlib.contextmanager
def statements():
    found = []

    def note(_connection, _cursor, statement, *_):
        found.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


async def test_a_page_costs_as_many_questions_however_long_it_is(url, engine):
    never = {"heartbeat_s": 1e6, "reap_every_s": 1e6, "residency_every_s": 1e6}
    world = await World.start(url, engine, **never)
    costs = set()
    for count in (2, 12):
        while len(await listed(world, limit=100)) < count:
            await one(world, "hi")
        engine.asked.clear()
        with statements() as sql:
            page = await world.service.inspector.page(ANN, 100, None)
        assert len(page.sessions) == count
        assert [type(query) for query in engine.asked] == [GetContexts]
        assert len(engine.asked[0].sessions) == count
        costs.add(len(sql))
    assert len(costs) == 1, costs
    await world.stop()


async def test_m04_after_a_restart_the_list_tells_what_the_disk_still_holds(url, engine):
    engine.has_disk_tier = True
    world = await World.start(url, engine)
    parked = [await one(world, f"number {number}") for number in range(3)]
    before = [await world.service.settings.park(ANN, session) for session in parked]
    bobs = await one(world, "hi", caller=BOB)
    await world.service.settings.park(BOB, bobs)
    cold = await one(world, "x" * 99)
    await world.stop()
    engine.lose()
    world = await World.start(url, engine)
    rows = {view.id: view for view in await listed(world)}
    assert {rows[session].state for session in parked} == {"parked"}
    assert [rows[view.id].blocks for view in before] == [view.blocks for view in before]
    for limit in (1, 2, 10):
        found = await listed(world, limit=limit, state="parked")
        assert [view.id for view in found] == parked[::-1]
    engine.disk_keys.clear()
    assert len(await listed(world, state="cold")) == 4
    assert [view.id for view in await listed(world, state="parked")] == []
    assert cold in {view.id for view in await listed(world, state="cold")}
    await world.stop()


async def test_m04_a_look_at_the_disk_reads_the_ids_of_a_session_once(url, engine):
    never = {"heartbeat_s": 1e6, "reap_every_s": 1e6, "residency_every_s": 1e6}
    engine.has_disk_tier = True
    world = await World.start(url, engine, **never)
    for number in range(5):
        await world.service.settings.park(ANN, await one(world, f"number {number}"))
    engine.lose()
    await listed(world, limit=100)
    engine.asked.clear()
    with statements() as sql:
        await world.service.inspector.page(ANN, 100, None)
    assert [type(query) for query in engine.asked] == [GetStored]
    assert not [statement for statement in sql if "input_ids" in statement]
    await world.stop()


async def test_m04_a_page_of_a_rare_state_never_looks_at_all_sessions(url, engine):
    engine.has_disk_tier = True
    world = await World.start(url, engine)
    sessions = [await one(world, f"number {number}") for number in range(25)]
    await world.service.settings.park(ANN, sessions[0])
    page = await world.service.inspector.page(ANN, 2, None, SessionFilter(state="parked"))
    assert (page.sessions, page.has_more) == ((), True)
    assert page.last_id == sessions[-20]
    assert [view.id for view in await listed(world, state="parked")] == [sessions[0]]
    await world.stop()
