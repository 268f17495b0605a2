"""Placement policies by name, those of other packages too."""

from importlib.metadata import EntryPoint

import pytest

from policies import registry
from policies.cost_aware import CostAware
from policies.plan import PlacementPlan
from policies.registry import UnknownPlacementPolicyError, placement_names, placement_policy
from policies.views import PlacementView
from tests.docs.blocks import code_blocks
from tests.policies.contexts import facts, order
from tests.policies.placement_laws import PlacementLaws


class Mine:
    def plan(self, view: PlacementView) -> PlacementPlan:
        return PlacementPlan(actions=[])


def test_built_in_policies_have_names() -> None:
    assert placement_names()[:4] == ["lru", "ttl", "priority", "cost_aware"]
    assert isinstance(placement_policy("cost_aware"), CostAware)


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    with pytest.raises(UnknownPlacementPolicyError, match=r"one of lru, ttl, .*'lfu'"):
        placement_policy("lfu")


def test_an_installed_package_adds_a_policy_but_replaces_none(monkeypatch) -> None:
    points = [
        EntryPoint(name, f"{__name__}:Mine", registry.ENTRY_POINTS) for name in ("mine", "lru")
    ]
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group, name=None: [point for point in points if name in (None, point.name)],
    )
    assert placement_names()[-1] == "mine"
    assert isinstance(placement_policy("mine"), Mine)
    assert not isinstance(placement_policy("lru"), Mine)


def test_the_policy_in_the_operators_guide_obeys_the_laws() -> None:
    (code,) = (
        code for code in code_blocks("docs/operations.md", "python") if "LargestFirst" in code
    )
    names: dict[str, type] = {}
    exec(code, names)

    class TestLargestFirst(PlacementLaws):
        policy = names["LargestFirst"]()

    TestLargestFirst().test_its_plans_obey_the_laws()
    contexts = [facts("small", blocks=1), facts("large", blocks=9)]
    assert order(TestLargestFirst.policy, *contexts) == ["large", "small"]
