"""Policies by name."""

from policies.plan import KeepAll
from policies.registry import CONTEXT_POLICIES, PLACEMENT_POLICIES
from policies.views import ConversationView


def test_the_policies_that_the_loop_names_are_there() -> None:
    assert "none" in CONTEXT_POLICIES
    assert "lru" in PLACEMENT_POLICIES


def test_none_never_shortens_a_conversation() -> None:
    view = ConversationView(
        system_tokens=10,
        summary_tokens=0,
        turns=[10_000],
        prompt_tokens=10,
        output_tokens=10,
        limit_tokens=100,
    )
    assert CONTEXT_POLICIES["none"].plan(view) == KeepAll()
