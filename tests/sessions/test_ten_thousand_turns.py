"""A conversation of 10,000 turns: the last one costs what the first ones did."""

from statistics import median

import msgspec
import pytest
import sqlalchemy as sa

from engine.ipc.messages import EditContext, SetContext, SubmitTurn
from sessiond.domain import PolicyChoice
from tests.harness.service import World, ask
from tests.ipc.loops import INFO
from tests.sessions.fake_engine import FakeEngine
from tests.soak import SOAK

TURNS = 10_000 if SOAK else 500
FIRST = 50  # turns, after which each costs the same
WINDOW = PolicyChoice(type="sliding_window", fidelity="shifted")

pytestmark = [pytest.mark.second, pytest.mark.timeout(1800 if SOAK else 900)]


class Statements:
    """Number of SQL statements that a store executes."""

    def __init__(self, store):
        self.count = 0
        for engine in store.database.engines:
            sa.event.listen(engine.sync_engine, "before_cursor_execute", self._count)

    def _count(self, *_):
        self.count += 1

    async def of(self, work):
        self.count = 0
        await work
        return self.count


@pytest.fixture(params=["all of it", "a window"])
def policy(request):
    return PolicyChoice(type="none") if request.param == "all of it" else WINDOW


async def test_a_turn_costs_no_more_than_at_first(url, policy):
    tokens = 10**7 if policy.type == "none" else 2000
    info = msgspec.structs.replace(INFO, max_model_len=tokens, total_blocks=tokens // 16)
    engine = FakeEngine(info)
    world = await World.start(url, engine, policy=policy)
    statements, session, costs, ids = Statements(world.store), None, [], []
    for number in range(TURNS):
        engine.commands.clear()
        turn = await world.begin(ask(f"{number:05}", conversation=session))
        session = turn.accepted.session_id
        costs.append(await statements.of(drained(turn)))
        assert number == 0 or not engine.sent(SetContext)
        ids.append(sum(len(command.ids) for command in engine.sent(SubmitTurn)))
        assert len(engine.sent(EditContext)) <= 1
        engine.turns.clear()
    # timers of the server ask, too, now and then
    assert median(costs[-FIRST:]) <= median(costs[:FIRST])
    assert max(ids[FIRST:]) <= max(ids[:FIRST])
    await world.stop()

    engine = FakeEngine(info)
    world = await World.start(url, engine, policy=policy)
    before = await world.context(session)
    turn, finished = await world.turn(ask("after a restart", conversation=session))
    assert finished.status == "completed"
    assert len(engine.sent(SetContext)) == 1
    assert (await world.context(session))[: len(before)] == before or policy.type != "none"
    await world.stop()


async def drained(turn):
    async for _ in turn.entries():
        pass
