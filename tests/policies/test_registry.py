"""Policies by name."""

from policies.plan import KeepAll
from policies.registry import CONTEXT_POLICIES, PLACEMENT_POLICIES
from policies.views import ConversationView


def test_the_names_are_those_that_settings_use() -> None:
    assert set(CONTEXT_POLICIES) == {"none"}
    assert set(PLACEMENT_POLICIES) == {"lru"}


def test_none_never_shortens_a_conversation() -> None:
    view = ConversationView(
        context_tokens=10_000, prompt_tokens=10, output_tokens=10, limit_tokens=100
    )
    assert CONTEXT_POLICIES["none"].plan(view) == KeepAll()
