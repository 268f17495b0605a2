"""Contexts with edits, read from SQL, are those of a plain model that keeps lists of ids."""

import asyncio
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessiond.domain import TurnUsage
from sessiond.store.context_layout import (
    ContextLayout,
    Span,
    SummaryRef,
    VisibleSpans,
    dropped_places,
)
from sessiond.store.records import NewSummary
from sessiond.store.store import Store
from tests.databases import PATIENCE_S
from tests.soak import SOAK
from tests.store.rows import kept, prompt, session, turn

PREFIX = [1, 2]


@dataclass(frozen=True)
class Model:
    """A context as lists. `seen`: indices of `turns`, each the ids of a whole turn."""

    tip: str | None = None
    turns: tuple[tuple[int, ...], ...] = ()
    seen: tuple[int, ...] = ()
    summary: tuple[int, ...] = ()
    summary_ref: SummaryRef | None = None
    held: tuple[int, ...] = tuple(PREFIX)
    edits: int = 0
    awaits: bool = False
    shifted: bool = False
    last_computed: int = 0
    tips: tuple[str, ...] = ()  # whose contexts this one begins with

    @property
    def visible(self):
        return [*PREFIX, *self.summary, *(token for at in self.seen for token in self.turns[at])]

    @property
    def spans(self):
        starts = [sum(map(len, self.turns[:at])) for at in self.seen]
        return [
            Span(start, start + len(self.turns[at]))
            for start, at in zip(starts, self.seen, strict=True)
        ]


@dataclass(frozen=True)
class Step:
    parent: int
    sizes: tuple[int, int]
    awaits: bool
    edit: str  # none, exact, shifted, summary
    keep: list[bool] = field(hash=False)


steps = st.builds(
    Step,
    parent=st.sampled_from([0, 0, 0, 0, 1, 2, 5]),  # how many contexts ago it began
    sizes=st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any),
    awaits=st.booleans(),
    edit=st.sampled_from(["none", "none", "exact", "shifted", "shifted", "summary"]),
    keep=st.lists(st.booleans(), min_size=12, max_size=12),
)


class Chains:
    """Does each step in SQL and in the model."""

    def __init__(self, store):
        self.store = store
        self.ids = count(100)
        self.names = count(1)
        self.contexts = [Model()]

    async def step(self, step):
        before = self.contexts[-1 - step.parent % len(self.contexts)]
        after, view = await self.edited(before, step)
        if view is not None:
            await self.check(before, after, view)
        name = f"resp_{next(self.names)}"
        ids = tuple(next(self.ids) for _ in range(sum(step.sizes)))
        home = f"conv_{name}"
        start = len(after.visible)
        await self.store.begin_turn(
            replace(
                turn(name, before.tip, session_id=home, ids=ids[: step.sizes[0]], start=start),
                awaits_reply=step.awaits,
            ),
            session=session(home, tip_id=before.tip, tokens=len(before.visible)),
            prompt=prompt() if name == "resp_1" else None,
        )
        fidelity = "shifted" if after.shifted else "exact"
        tokens = start + len(ids)
        row = kept(name, before.tip, session_id=home, ids=ids[step.sizes[0] :], tokens=tokens)
        usage = TurnUsage(new_tokens=1, output_tokens=step.sizes[1], fidelity=fidelity)
        await self.store.commit_turn(replace(row, view=view, usage=usage))
        record = await self.store.find_session("ann", home)
        assert (record.context_tokens, record.fidelity) == (tokens, fidelity)
        self.contexts.append(grown(after, name, ids, step))
        await self.check(self.contexts[-1], self.contexts[-1], None)

    async def edited(self, before, step):
        if step.edit == "none" or before.tip is None:
            return before, None
        last = len(before.seen) - 1
        seen = tuple(
            at
            for place, at in enumerate(before.seen)
            if step.keep[place % 12] or (before.awaits and place == last)
        )
        after = replace(before, seen=seen, tips=())
        if step.edit == "summary":
            after = await self.summarized(after)
        if step.edit == "shifted":
            after = replace(after, edits=before.edits + 1, shifted=True)
        else:
            after = replace(after, held=tuple(after.visible), edits=0, shifted=False)
        fidelity = "shifted" if after.shifted else "exact"
        return after, VisibleSpans(
            spans=joined(after.spans), fidelity=fidelity, summary=after.summary_ref
        )

    async def summarized(self, at):
        ids = tuple(next(self.ids) for _ in range(2))
        ref = SummaryRef(id=f"sum_{next(self.names)}", tokens=2)
        await self.store.add_summary(
            NewSummary(
                id=ref.id,
                user_id="ann",
                session_id=f"conv_{at.tip}",
                turn_id=at.tip,
                token_ids=ids,
                text="",
                usage=TurnUsage(new_tokens=5, output_tokens=2),
                created_at=3.0,
            )
        )
        return replace(at, summary=ids, summary_ref=ref)

    async def check(self, tip, expected, view):
        stored = await self.store.context("ann", "sys_1", tip.tip, view)
        assert stored.visible_ids == expected.visible
        assert stored.ids == list(expected.held)
        assert len(stored.edits) == expected.edits
        # Computed is a prefix: up to the last token that some turn has fed.
        fed = [t <= expected.last_computed or t in expected.summary for t in expected.held]
        assert stored.computed == (sum(fed) if expected.last_computed else 0)
        layout = await self.store.layout("ann", len(PREFIX), tip.tip)
        if view is not None:
            layout = layout.seen(view)
        assert list(layout.turns) == expected.spans
        assert layout.tokens == len(expected.visible)
        assert (layout.all_turns, layout.awaits_reply) == (len(expected.turns), expected.awaits)
        assert (layout.fidelity == "shifted") == expected.shifted
        for other in self.contexts[1:]:
            covered = await self.store.covers("ann", other.tip, tip.tip)
            if view is None:
                assert covered == (other.tip in expected.tips), (other.tip, expected)


def grown(at, name, ids, step):
    turns, seen = at.turns, at.seen
    if at.awaits and seen and ids:
        turns = (*turns[:-1], turns[-1] + ids)
    elif ids:
        turns, seen = (*turns, ids), (*seen, len(turns))
    fed = step.sizes[0] + max(0, step.sizes[1] - 1)
    return replace(
        at,
        tip=name,
        turns=turns,
        seen=seen,
        held=at.held + ids,
        awaits=step.awaits,
        last_computed=ids[fed - 1] if fed else (ids[0] - 1),
        tips=(*at.tips, name),
    )


def joined(spans):
    result = []
    for span in spans:
        if result and result[-1].stop == span.start:
            result[-1] = Span(result[-1].start, span.stop)
        else:
            result.append(span)
    return tuple(result)


@pytest.mark.soak
@settings(
    max_examples=500 if SOAK else 20,
    derandomize=not SOAK,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(plan=st.lists(steps, min_size=3, max_size=14))
def test_what_sql_says_is_visible_is_what_the_edits_leave(lend_database, plan):
    async def run(url):
        store = Store(url, timeout_s=PATIENCE_S)
        try:
            chains = Chains(store)
            for step in plan:
                await chains.step(step)
        finally:
            await store.close()

    with lend_database() as url:
        asyncio.run(run(url))


class TestContextLayout:
    """Four turns of 10, 20, 30 and 40 tokens behind a front of 5."""

    @pytest.fixture
    def layout(self):
        layout = ContextLayout(prefix_tokens=5)
        for tokens in (10, 20, 30, 40):
            layout = layout.grown(tokens, awaits_reply=False)
        return layout

    def test_what_is_dropped_is_told_in_places_that_were_visible(self, layout):
        view = VisibleSpans(spans=(Span(10, 30), Span(60, 100)), fidelity="shifted")
        after = layout.seen(view)
        assert dropped_places(layout, after) == ((5, 15), (35, 65))
        assert (after.tokens, after.dropped_turns, after.context) == (65, 2, "trimmed")
        again = after.seen(VisibleSpans(spans=(Span(60, 100),), fidelity="shifted"))
        assert dropped_places(after, again) == ((5, 25),)

    def test_turns_that_touch_leave_as_one_span(self, layout):
        after = layout.seen(VisibleSpans(spans=(Span(60, 100),), fidelity="shifted"))
        assert dropped_places(layout, after) == ((5, 65),)

    def test_a_summary_that_goes_leaves_with_what_follows_it(self, layout):
        summary = SummaryRef(id="sum_1", tokens=7)
        seen = layout.seen(VisibleSpans(spans=(Span(30, 100),), fidelity="exact", summary=summary))
        assert (seen.tokens, seen.context) == (82, "summarized")
        after = seen.seen(VisibleSpans(spans=(Span(60, 100),), fidelity="shifted"))
        assert dropped_places(seen, after) == ((5, 42),)

    def test_a_question_and_its_late_reply_are_one_turn(self, layout):
        asked = layout.grown(3, awaits_reply=True)
        assert asked.finished == layout.turns
        answered = asked.grown(4, awaits_reply=False)
        assert answered.turns == (*layout.turns, Span(100, 107))
        assert answered.all_turns == 5
