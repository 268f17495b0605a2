"""What every placement policy must satisfy: subclass, and set `policy`."""

from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.laws import check_placement
from policies.protocol import PlacementPolicy
from policies.views import ContextFacts, PlacementView

CONTEXTS = st.lists(
    st.builds(
        ContextFacts,
        session=st.text("abcdef", min_size=1, max_size=3),
        blocks=st.integers(0, 20),
        last_used_s=st.floats(0, 100),
        waiting=st.booleans(),
    ),
    unique_by=lambda facts: facts.session,
)


# Each policy's class runs the same inherited test: no state is shared that could mix them up.
_SETTINGS = settings(derandomize=True, suppress_health_check=[HealthCheck.differing_executors])


class PlacementLaws:
    policy: ClassVar[PlacementPolicy]

    @_SETTINGS
    @given(contexts=CONTEXTS, needed=st.integers(1, 60))
    def test_its_plans_obey_the_laws(self, contexts: list[ContextFacts], needed: int) -> None:
        view = PlacementView(now_s=100.0, needed_blocks=needed, contexts=contexts)
        check_placement(view, self.policy.plan(view))

    @_SETTINGS
    @given(contexts=CONTEXTS, needed=st.integers(1, 60))
    def test_the_same_view_gives_the_same_plan(
        self, contexts: list[ContextFacts], needed: int
    ) -> None:
        view = PlacementView(now_s=100.0, needed_blocks=needed, contexts=contexts)
        assert self.policy.plan(view) == self.policy.plan(view)
