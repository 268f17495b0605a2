"""Policies by name."""

from policies.plan import KeepAll
from policies.registry import CONTEXT_POLICIES
from policies.views import ConversationView


def test_the_policy_that_is_in_force_is_there() -> None:
    assert "none" in CONTEXT_POLICIES


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
