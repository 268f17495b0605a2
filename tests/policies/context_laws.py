"""What every context policy must satisfy: subclass, and set `policy`."""

import random
from dataclasses import replace
from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.laws import check_context
from policies.plan import ContextPlan, KeepAll, KeepTurns, Summarize
from policies.protocol import ContextPolicy
from policies.views import ConversationView

VIEWS = st.builds(
    ConversationView,
    system_tokens=st.integers(0, 200),
    summary_tokens=st.just(0) | st.integers(1, 150),
    turns=st.lists(st.integers(1, 300), max_size=40).map(tuple),
    prompt_tokens=st.integers(0, 300),
    output_tokens=st.integers(0, 300),
    limit_tokens=st.integers(50, 2000),
)

# Each policy's class runs the same inherited test: no state is shared that could mix them up.
_SETTINGS = settings(derandomize=True, suppress_health_check=[HealthCheck.differing_executors])


def after(view: ConversationView, plan: ContextPlan) -> ConversationView:
    """What the model sees once the plan is carried out, and the new turn still to come."""
    match plan:
        case KeepAll():
            return view
        case KeepTurns(turns=kept, summary=summary):
            turns = tuple(view.turns[index] for index in kept)
            return replace(view, turns=turns, summary_tokens=view.summary_tokens * summary)
        case Summarize(keep_last=keep_last, summary_tokens=tokens):
            turns = tuple(view.turns[len(view.turns) - keep_last :])
            return replace(view, turns=turns, summary_tokens=tokens)


class ContextLaws:
    policy: ClassVar[ContextPolicy]
    trims: ClassVar = True  # whether it ever drops a turn
    keeps_newest: ClassVar = True  # and no others

    @_SETTINGS
    @given(view=VIEWS)
    def test_its_plans_obey_the_laws(self, view: ConversationView) -> None:
        check_context(view, self.policy.plan(view))

    @_SETTINGS
    @given(view=VIEWS)
    def test_the_same_view_gives_the_same_plan(self, view: ConversationView) -> None:
        assert self.policy.plan(view) == self.policy.plan(view)

    @_SETTINGS
    @given(view=VIEWS)
    def test_what_is_left_fits_if_whole_turns_allow_it(self, view: ConversationView) -> None:
        alone = view.system_tokens + view.prompt_tokens + view.output_tokens
        if self.trims and alone <= view.limit_tokens:
            plan = self.policy.plan(view)
            assert after(view, plan).needed_tokens <= view.limit_tokens
            if isinstance(plan, Summarize):
                assert after(view, plan.fallback).needed_tokens <= view.limit_tokens

    @_SETTINGS
    @given(view=VIEWS)
    def test_the_newest_turns_are_those_that_stay(self, view: ConversationView) -> None:
        plan = self.policy.plan(view)
        if self.keeps_newest and isinstance(plan, KeepTurns) and plan.turns:
            assert list(plan.turns) == list(range(plan.turns[0], len(view.turns)))

    @_SETTINGS
    @given(view=VIEWS)
    def test_what_was_shortened_just_now_is_left_alone(self, view: ConversationView) -> None:
        plan = self.policy.plan(view)
        alone = view.system_tokens + view.prompt_tokens + view.output_tokens
        if isinstance(plan, KeepTurns) and alone <= view.limit_tokens:
            assert isinstance(self.policy.plan(after(view, plan)), KeepAll)

    def test_a_long_chat_is_shortened_on_one_turn_in_five_at_most(self) -> None:
        draw = random.Random(1)
        view = ConversationView(
            system_tokens=40,
            summary_tokens=0,
            turns=(),
            prompt_tokens=0,
            output_tokens=64,
            limit_tokens=1024,
        )
        shortened: list[int] = []
        for number in range(300):
            view = replace(view, prompt_tokens=draw.randint(5, 25))
            plan = self.policy.plan(view)
            if not isinstance(plan, KeepAll):
                shortened.append(number)
                view = after(view, plan)
            assert view.needed_tokens <= view.limit_tokens or not self.trims
            view = replace(view, turns=(*view.turns, view.prompt_tokens + draw.randint(1, 20)))
        assert bool(shortened) == self.trims
        assert len(shortened) <= 300 / 5
