"""What every placement policy must satisfy: subclass, and set `policy`."""

from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.laws import check_placement
from policies.protocol import PlacementPolicy
from policies.views import NOTHING_SEEN, ContextFacts, PlacementView, ReturnCounts, TurnKind

NOW_S = 100.0


@st.composite
def _facts(draw):
    blocks = draw(st.integers(0, 20))
    return ContextFacts(
        session=draw(st.text("abcdef", min_size=1, max_size=3)),
        blocks=blocks,
        shared_blocks=draw(st.integers(0, blocks)),
        stored_blocks=draw(st.integers(0, blocks)),
        last_used_s=draw(st.floats(0, NOW_S)),
        waiting=draw(st.booleans()),
        turns=draw(st.integers(0, 9)),
        new_tokens=draw(st.integers(0, 20_000)),
        priority=draw(st.integers(0, 2)),
        expected_until_s=draw(st.none() | st.floats(0, 2 * NOW_S)),
    )


@st.composite
def _counts(draw):
    spans = len(NOTHING_SEEN.ages_s)
    watched, returned = {}, {}
    for kind in draw(st.sets(st.builds(TurnKind, st.integers(1, 5), st.integers(0, 7)))):
        watched[kind] = draw(st.lists(st.integers(0, 50), min_size=spans, max_size=spans))
        returned[kind] = [draw(st.integers(0, count)) for count in watched[kind]]
    return ReturnCounts(ages_s=NOTHING_SEEN.ages_s, watched=watched, returned=returned)


VIEWS = st.builds(
    PlacementView,
    now_s=st.just(NOW_S),
    needed_blocks=st.integers(1, 60),
    contexts=st.lists(_facts(), unique_by=lambda facts: facts.session),
    swaps=st.booleans(),
    restore_s=st.sampled_from([0.0, 0.01, 2.0]),
    recompute_s=st.just(1.0),
    returns=st.just(NOTHING_SEEN) | _counts(),
)

# Each policy's class runs the same inherited test: no state is shared that could mix them up.
_SETTINGS = settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


class PlacementLaws:
    policy: ClassVar[PlacementPolicy]

    @_SETTINGS
    @given(view=VIEWS)
    def test_its_plans_obey_the_laws(self, view: PlacementView) -> None:
        check_placement(view, self.policy.plan(view))

    @_SETTINGS
    @given(view=VIEWS)
    def test_the_same_view_gives_the_same_plan(self, view: PlacementView) -> None:
        assert self.policy.plan(view) == self.policy.plan(view)

    @_SETTINGS
    @given(view=VIEWS)
    def test_a_hint_protects_nobody_when_nothing_else_is_left(self, view: PlacementView) -> None:
        everything = PlacementView(now_s=NOW_S, needed_blocks=10_000, contexts=view.contexts)
        named = {action.session for action in self.policy.plan(everything).actions}
        assert named == {facts.session for facts in view.contexts if facts.blocks}
