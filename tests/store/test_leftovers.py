"""What is left of closed sessions is what open ones are built on, whatever was done in which order.

The rule is worked out anew from all rows after each step; what the store does looks at the rows
near the step only.
"""

import random
from dataclasses import replace

import pytest
import sqlalchemy as sa

from sessiond.domain import TurnUsage
from sessiond.store.context_layout import Span, VisibleSpans
from sessiond.store.records import NewSummary
from sessiond.store.schema import items, sessions, summaries, system_prompts, turns
from tests.store.rows import kept, prompt, session, turn

STEPS = 40
DAY_S = 24 * 3600
ANN = "ann"


class Life:
    """Sessions of one user, at random."""

    def __init__(self, store, seed):
        self.store = store
        self.dice = random.Random(seed)
        self.tips = {}  # of open sessions
        self.now = 10.0
        self.numbers = iter(range(10_000))

    async def step(self):
        self.now += 1
        ways = [self.open, self.fork, self.turn, self.turn, self.summarise, self.reset]
        ways += [self.rewind, self.close, self.close]
        await self.dice.choice(ways)()

    async def open(self):
        name = f"conv_{next(self.numbers)}"
        row = replace(session(name), prompt_id=f"sys_{name}")
        await self.store.create_session(row, prompt(row.prompt_id, text="be kind"))
        self.tips[name] = None

    async def fork(self):
        points = await self.rows(turns)
        if points:
            point = self.dice.choice(points)
            name = f"conv_{next(self.numbers)}"
            row = session(name, ANN, point.system_prompt_id, point.id, point.context_tokens)
            await self.store.create_session(row, None)
            self.tips[name] = point.id

    async def turn(self):
        name = self.some()
        if name is not None:
            record = await self.store.find_session(ANN, name)
            new = f"resp_{next(self.numbers)}"
            start, system_prefix = record.context_tokens, record.prompt.id
            begun = turn(new, record.tip_id, session_id=name, start=start)
            begun = replace(begun, prompt_id=system_prefix)
            await self.store.begin_turn(begun, session=None, prompt=None)
            end = kept(new, record.tip_id, session_id=name, tokens=start + 3)
            end = replace(end, prompt_id=system_prefix, view=await self.view(record.tip_id))
            await self.store.commit_turn(end)
            self.tips[name] = new

    async def view(self, tip_id):
        """That of a turn which uses a summary of its context, if there is one."""
        found = await self.store.newest_summary(ANN, tip_id) if tip_id else None
        if found is None or self.dice.random() < 0.5:
            return None
        return VisibleSpans(spans=(Span(0, 0),), fidelity="exact", summary=found.ref)

    async def summarise(self):
        name = self.some()
        if name is not None and self.tips[name] is not None:
            await self.store.add_summary(
                NewSummary(
                    id=f"sum_{next(self.numbers)}",
                    user_id=ANN,
                    session_id=name,
                    turn_id=self.tips[name],
                    token_ids=(1, 2),
                    text="in short",
                    usage=TurnUsage(),
                    created_at=self.now,
                )
            )

    async def reset(self):
        name = self.some()
        if name is not None:
            await self.store.reset_session(ANN, name, self.now, epoch=1)
            self.tips[name] = None

    async def rewind(self):
        name = self.some()
        if name is not None and self.tips[name] is not None:
            tip = await self.store.find_turn(ANN, self.tips[name])
            if tip.parent_id is not None:
                to = await self.store.find_turn(ANN, tip.parent_id)
                assert await self.store.rewind_session(ANN, name, tip.id, to, self.now, epoch=1)
                self.tips[name] = to.id

    async def close(self, name=None):
        name = name or self.some()
        if name is not None:
            assert await self.store.close_session(ANN, name, self.now)
            del self.tips[name]

    def some(self):
        return self.dice.choice(sorted(self.tips)) if self.tips else None

    async def rows(self, table):
        async def work(connection):
            return (await connection.execute(sa.select(table))).all()

        return await self.store.database.read(work)

    async def check(self):
        """The rule, on all rows."""
        found = {row.id: row for row in await self.rows(turns)}
        needed = set()
        rows_of_open = [row.id for row in found.values() if row.session_id in self.tips]
        for end in (*self.tips.values(), *rows_of_open):
            turn_id = end
            while turn_id is not None and turn_id not in needed:
                needed.add(turn_id)
                turn_id = found[turn_id].parent_id
        assert found.keys() == needed
        assert {row.turn_id for row in await self.rows(items)} == needed
        used = {row.summary_id for row in found.values()}
        for row in await self.rows(summaries):
            assert row.session_id in self.tips or row.id in used
        await self.check_sessions(found)

    async def check_sessions(self, found):
        with_rows = {row.session_id for row in found.values()}
        with_rows |= {row.session_id for row in await self.rows(summaries)}
        system_prefixes = {row.system_prompt_id for row in found.values()}
        for row in await self.rows(sessions):
            if row.id in self.tips:
                system_prefixes.add(row.system_prompt_id)
                continue
            assert (row.metadata, row.tip_id) == ({}, None)
            assert (row.forget_at is None) == (row.id in with_rows)
            assert row.forget_at in {None, row.closed_at + DAY_S}
        for row in await self.rows(system_prompts):
            assert bool(row.token_ids) == (row.id in system_prefixes)


@pytest.mark.parametrize("seed", range(5))
async def test_what_is_left_is_what_open_sessions_are_built_on(store, seed):
    life = Life(store, seed)
    for _ in range(STEPS):
        await life.step()
        await life.check()
    for name in sorted(life.tips):
        await life.close(name)
        await life.check()
    assert await life.rows(turns) == []
    life.now += DAY_S + 1
    await life.open()
    await life.close()
    (last,) = await life.rows(sessions)
    assert last.closed_at == life.now


async def test_a_long_line_goes_at_once_and_two_that_meet_go_to_where_they_meet(store):
    """Four forks of one old session; each step up is one statement for all that is alone there."""
    life = Life(store, 0)
    await life.open()
    (base,) = life.tips
    for _ in range(30):
        life.some = lambda: base
        await life.turn()
    ends = [row.id for row in sorted(await life.rows(turns), key=lambda row: row.context_tokens)]
    for end in (ends[9], ends[19], ends[19], ends[29]):
        name = f"conv_{next(life.numbers)}"
        row = session(name, ANN, f"sys_{base}", end, 5)
        await store.create_session(row, None)
        life.tips[name] = end
    await life.close(base)
    left = []
    for name in sorted(life.tips, key=lambda name: -ends.index(life.tips[name])):
        await life.close(name)
        await life.check()
        left.append(len(await life.rows(turns)))
    assert left == [20, 20, 10, 0]


async def test_a_fork_that_goes_back_lets_go_of_what_it_stood_on(store):
    life = Life(store, 0)
    await life.open()
    (base,) = life.tips
    for _ in range(3):
        await life.turn()
    fork = session("conv_fork", ANN, f"sys_{base}", life.tips[base], 11)
    await store.create_session(fork, None)
    life.tips[fork.id] = life.tips[base]
    await life.close(base)
    left = [len(await life.rows(turns))]
    for go_back in (life.rewind, life.reset):
        await go_back()
        await life.check()
        left.append(len(await life.rows(turns)))
    assert left == [3, 2, 0]
