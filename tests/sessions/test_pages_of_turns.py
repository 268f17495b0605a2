"""Turns of a session, page by page; what a look and a fork cost, however long the history is."""

import sqlite3

import pytest

from sessiond.domain import PolicyChoice, SessionView
from sessiond.store.schema import sessions, turns
from tests.harness.service import ANN, World, ask

WINDOW = PolicyChoice(type="sliding_window")
_FEW = 1000  # instructions of SQLite's machine: some dozens of rows


class Instructions:
    """Counts what SQLite's machine does, by the thousand, for each connection that is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        connect = sqlite3.connect

        def counted(*args, **kwargs):
            connection = connect(*args, **kwargs)
            connection.set_progress_handler(self._more, 100)
            return connection

        monkeypatch.setattr(sqlite3, "connect", counted)

    def _more(self) -> int:
        self.count += 100
        return 0

    async def of(self, work) -> int:
        before = self.count
        await work
        return self.count - before


async def talked(world: World, count: int) -> tuple[str, list[str]]:
    """A session of `count` turns, and the ids of these."""
    first, _ = await world.turn(ask("0"))
    session, ids = first.accepted.session_id, [first.accepted.response_id]
    for number in range(1, count):
        turn, _ = await world.turn(ask(str(number), conversation=session))
        ids.append(turn.accepted.response_id)
    return session, ids


def inputs(view: SessionView) -> list[str]:
    return [part.response_id for part in view.turns if part.role == "user"]


async def pages(world: World, session: str, limit: int) -> list[SessionView]:
    """All pages, as a client walks through them."""
    found, after = [], None
    while True:
        view = await world.service.inspector.session(ANN, session, limit=limit, after=after)
        found.append(view)
        after = view.turns_after
        if after is None:
            return found


@pytest.mark.parametrize("limit", [1, 3, 7, 20])
async def test_r08_pages_have_each_turn_once_and_the_newest_first(world, limit):
    session, ids = await talked(world, 7)
    whole = await world.service.inspector.session(ANN, session, limit=100)
    assert (inputs(whole), whole.turns_after) == (ids, None)
    found = await pages(world, session, limit)
    assert all(len(inputs(view)) <= limit for view in found)
    assert tuple(part for view in found[::-1] for part in view.turns) == whole.turns
    assert {view.tokens_total for view in found} == {whole.tokens_total}


async def test_r08_an_unknown_place_has_no_turns_before_it(world):
    session, _ = await talked(world, 3)
    view = await world.service.inspector.session(ANN, session, after="resp_nothing")
    assert (view.turns, view.turns_after) == ((), None)


async def test_r08_a_page_tells_what_is_seen_though_edits_lie_outside_of_it(url, engine):
    world = await World.start(url, engine, policy=WINDOW)
    session, _ = await talked(world, 70)
    whole = await world.service.inspector.session(ANN, session, limit=100)
    assert any(part.kept for part in whole.turns)
    assert not all(part.kept for part in whole.turns)
    found = await pages(world, session, 20)
    assert tuple(part for view in found[::-1] for part in view.turns) == whole.turns
    await world.stop()


async def test_r08_turns_of_an_older_version_are_summed(world):
    session, _ = await talked(world, 6)
    before = await world.service.inspector.session(ANN, session)

    async def forget(connection):
        await connection.execute(turns.update().values(history_tokens=None))
        usage = ("usage_turns", "usage_input", "usage_cached", "usage_output")
        await connection.execute(sessions.update().values(dict.fromkeys(usage)))

    await world.store.database.write(forget)
    assert await world.service.inspector.session(ANN, session) == before
    await world.turn(ask("more", conversation=session))
    after = await world.service.inspector.session(ANN, session, limit=1)
    assert after.tokens_total > before.tokens_total


async def test_r08_a_look_and_a_fork_cost_the_same_however_long_the_history_is(
    tmp_path, engine, monkeypatch, url
):
    if not url.startswith("sqlite"):
        pytest.skip("counts instructions of SQLite")
    instructions = Instructions(monkeypatch)
    never = {"heartbeat_s": 1e6, "reap_every_s": 1e6, "residency_every_s": 1e6}
    world = await World.start(url, engine, policy=WINDOW, **never)
    costs = []
    for count in (80, 240):
        session, ids = await talked(world, count)
        inspector, openings = world.service.inspector, world.service.openings
        costs.append(
            {
                "look": await instructions.of(inspector.session(ANN, session)),
                "older page": await instructions.of(
                    inspector.session(ANN, session, after=ids[count // 2])
                ),
                "fork": await instructions.of(openings.fork(ANN, session)),
                "fork at an older turn": await instructions.of(
                    openings.fork(ANN, session, ids[-5])
                ),
            }
        )
    short, long = costs
    assert all(short.values()), "nothing was counted"
    for name, cost in long.items():
        assert cost <= short[name] + _FEW, (name, costs)
    await world.stop()
