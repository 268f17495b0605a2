"""`trim_history`: while memory is short, declared conversations lose old turns, longest first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.laws import check_context
from policies.plan import KeepAll, KeepTurns
from sessiond.domain import PolicyChoice
from sessiond.sessions.fit import trimmed_for_memory
from sessiond.sessions.hooks import Hooks
from tests.harness.service import World, ask, entries
from tests.policies.context_laws import VIEWS, after
from tests.policies.test_context_policies import view
from tests.sessions.trimmed import changes, chat, keep

DECLARED = PolicyChoice(type="scripted", under_pressure="trim_history")


class TestRule:
    def test_m08_the_longest_conversations_are_cut_to_a_share_of_the_pool(self) -> None:
        long, short = view(*[100] * 10, limit=8000), view(*[100] * 5, limit=8000)
        plan = trimmed_for_memory(long, "low", 700)
        assert plan == KeepTurns(turns=range(5, 10))  # 500 and 40 others: four fifths of 700
        assert trimmed_for_memory(short, "low", 700) == KeepAll()

    def test_m08_the_least_important_are_cut_first(self) -> None:
        long = view(*[100] * 20, limit=8000)
        kept = [trimmed_for_memory(long, one, 700) for one in ("low", "normal", "high")]
        assert kept == [
            KeepTurns(turns=range(15, 20)),
            KeepTurns(turns=range(10, 20)),
            KeepAll(),
        ]

    def test_the_newest_turns_stay_however_short_memory_is(self) -> None:
        plan = trimmed_for_memory(view(*[100] * 10, limit=8000), "low", 1)
        assert plan == KeepTurns(turns=range(6, 10))

    def test_what_saves_less_than_a_fifth_is_left(self) -> None:
        assert trimmed_for_memory(view(*[100] * 5, limit=8000), "low", 1) == KeepAll()

    @settings(derandomize=True)
    @given(one=VIEWS, share=st.integers(0, 3000), priority=st.sampled_from(["low", "normal"]))
    def test_its_plans_obey_the_laws_and_are_made_once(self, one, share, priority) -> None:
        plan = trimmed_for_memory(one, priority, share)
        check_context(one, plan)
        if isinstance(plan, KeepTurns):
            assert len(plan.turns) >= 4
            left = after(one, plan)
            assert left.needed_tokens <= 0.8 * one.needed_tokens
            again = trimmed_for_memory(left, priority, share)
            assert isinstance(again, KeepAll) or left.needed_tokens > share


class TestService:
    """Of turns while another holds half of what the warning allows, and before."""

    @pytest.fixture
    async def world(self, url, engine):
        self.steps = []
        pool = engine.info.total_blocks * engine.info.block_size
        world = await World.start(
            url,
            engine,
            policy=DECLARED,
            hooks=Hooks(degraded=self.steps.append),
            demand_warn_watermark=500 / pool,
            demand_high_watermark=0,
        )
        yield world
        await world.stop()

    async def said(self, world, engine, session, **fields):
        """The changes that one more turn of a conversation reports."""
        engine.auto = True
        turn = await world.begin(ask("on", conversation=session, **fields))
        return changes(await entries(turn))

    async def pressed(self, world, engine):
        engine.auto = False
        return await world.begin(ask("x" * 520), lane="other")

    async def test_m08_a_long_idle_conversation_is_cut_when_memory_is_short(self, world, engine):
        session, _ = await chat(world, *["y" * 80] * 8, priority="low")
        assert await self.said(world, engine, session, priority="low") == []
        await self.pressed(world, engine)
        (change,) = await self.said(world, engine, session, priority="low")
        assert (change.reason, change.context) == ("memory_pressure", "trimmed")
        assert change.dropped_turns >= 4
        assert change.tokens_after < change.tokens_before - 4 * 80
        assert [step for step in self.steps if step != "queue"] == ["trim_history"]
        assert await self.said(world, engine, session, priority="low") == []

    @pytest.mark.parametrize(
        "fields",
        [
            {"priority": "high"},
            {"truncation": "disabled"},
            {"policy": PolicyChoice(type="scripted")},
        ],
        ids=["important", "forbidden", "not declared"],
    )
    async def test_m08_nothing_is_cut_that_is_not_declared(self, world, engine, fields):
        session, _ = await chat(world, *["y" * 80] * 8)
        await self.pressed(world, engine)
        assert await self.said(world, engine, session, **fields) == []
        assert "trim_history" not in self.steps

    async def test_what_the_policy_drops_itself_is_no_pressure(self, world, engine):
        session, _ = await chat(world, *["y" * 80] * 8, priority="low")
        await self.pressed(world, engine)
        keep(world, 7)
        (change,) = await self.said(world, engine, session, priority="low")
        assert change.reason == "trimmed"
        assert "trim_history" not in self.steps
