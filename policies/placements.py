"""Placement policies by name: built-in ones, and those of installed packages.

A package adds one by an entry point in the group `sessiond.placement_policies`, whose object takes
no arguments and makes a `PlacementPolicy`.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from policies.cost_aware import CostAware
from policies.lru import LeastRecentlyUsed
from policies.priority import PriorityFirst
from policies.protocol import PlacementPolicy
from policies.ttl import TimeToLive

ENTRY_POINTS = "sessiond.placement_policies"

BUILT_IN: Mapping[str, Callable[[], PlacementPolicy]] = MappingProxyType(
    {
        "lru": LeastRecentlyUsed,
        "ttl": TimeToLive,
        "priority": PriorityFirst,
        "cost_aware": CostAware,
    }
)


class UnknownPlacementPolicyError(Exception):
    """No placement policy has that name. `known` are the valid names."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"no placement policy {name!r}; there are {', '.join(known)}")
        self.name = name
        self.known = known


def placement_names() -> list[str]:
    """All names, built-in ones first. An entry point can't replace a built-in policy."""
    added = sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(BUILT_IN))
    return [*BUILT_IN, *added]


def placement_policy(name: str) -> PlacementPolicy:
    """Make the policy of that name.

    Raises:
        UnknownPlacementPolicyError: there is none.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    for point in entry_points(group=ENTRY_POINTS, name=name):
        made: PlacementPolicy = point.load()()
        return made
    raise UnknownPlacementPolicyError(name, placement_names())
