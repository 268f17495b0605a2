"""Policies by name: built-in ones, and those of installed packages by entry point.

The context policy `none` (keep everything) is defined here.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from policies.cost_aware import CostAware
from policies.last_turns import LastTurns
from policies.lru import LeastRecentlyUsed
from policies.plan import ContextPlan, KeepAll
from policies.priority import PriorityFirst
from policies.protocol import ContextPolicy, PlacementPolicy
from policies.sliding_window import SlidingWindow
from policies.summarize import Compaction
from policies.token_budget import TokenBudget
from policies.toolkit import ParameterError
from policies.ttl import TimeToLive
from policies.views import ConversationView

CONTEXT_POLICY_GROUP = "sessiond.context_policies"
ENTRY_POINTS = "sessiond.placement_policies"


class KeepAllPolicy:
    """Keeps the whole conversation. The engine refuses turns that do not fit."""

    def plan(self, view: ConversationView) -> ContextPlan:  # noqa: ARG002 -- the Protocol's
        """Keep all turns."""
        return KeepAll()


CONTEXT_POLICIES: Mapping[str, type[ContextPolicy]] = MappingProxyType(
    {
        "none": KeepAllPolicy,
        "sliding_window": SlidingWindow,
        "last_turns": LastTurns,
        "token_budget": TokenBudget,
        "compaction": Compaction,  # OpenAI's name for it
        "summarize": Compaction,
    }
)

BUILT_IN: Mapping[str, Callable[[], PlacementPolicy]] = MappingProxyType(
    {
        "lru": LeastRecentlyUsed,
        "ttl": TimeToLive,
        "priority": PriorityFirst,
        "cost_aware": CostAware,
    }
)


class PluginError(Exception):
    """A policy of another package can't be used; the message names the package."""


class ContextPolicyRegistry:
    """Makes context policies. `plugins` are added to the built-in ones."""

    def __init__(self, plugins: Mapping[str, type[ContextPolicy]] | None = None) -> None:
        self._classes = dict(CONTEXT_POLICIES) | dict(plugins or {})

    @property
    def names(self) -> list[str]:
        """Names that `make` accepts."""
        return sorted(self._classes)

    def parameters(self, name: str) -> dict[str, Any]:
        """Annotations of a policy's parameters, by their names; Any where there is none."""
        taken = inspect.signature(self._classes[name], eval_str=True).parameters.values()
        return {
            one.name: Any if one.annotation is inspect.Parameter.empty else one.annotation
            for one in taken
        }

    def make(self, name: str, parameters: Mapping[str, int | float | str]) -> ContextPolicy:
        """Make one policy with its parameters.

        Raises:
            ParameterError: there is no such policy (`name` is "type"), it lacks the parameter, or
                does not accept its value.
        """
        policy = self._classes.get(name)
        if policy is None:
            raise ParameterError("type", name, f"one of {', '.join(self.names)}")
        known = self.parameters(name)
        for parameter, value in parameters.items():
            if parameter not in known:
                allowed = f"absent: {name} has no parameters"
                if known:
                    allowed = f"one of the parameters {', '.join(known)}"
                raise ParameterError(parameter, value, allowed)
        return policy(**parameters)


def installed_context_policies() -> ContextPolicyRegistry:
    """Built-in policies, and those of all installed packages.

    Raises:
        PluginError: one of them can't be loaded, is not a policy, or has the name of another.
    """
    return ContextPolicyRegistry(_load(entry_points(group=CONTEXT_POLICY_GROUP)))


def _load(points: Iterable[EntryPoint]) -> dict[str, type[ContextPolicy]]:
    plugins: dict[str, type[ContextPolicy]] = {}
    for point in points:
        origin = (
            f"context policy {point.name!r} of {point.dist.name if point.dist else point.value}"
        )
        if point.name in CONTEXT_POLICIES or point.name in plugins:
            raise PluginError(f"{origin}: name must be unused (another policy has it)")
        try:
            policy = point.load()
        except Exception as error:
            raise PluginError(f"{origin} cannot be loaded: {error}") from error
        if not isinstance(policy, type) or not callable(getattr(policy, "plan", None)):
            raise PluginError(f"{origin} must be a class with a method `plan` (got {policy!r})")
        plugins[point.name] = policy
    return plugins


class UnknownPlacementPolicyError(Exception):
    """No placement policy has that name. `known` are the valid names."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"placement policy must be one of {', '.join(known)} (got {name!r})")
        self.name = name
        self.known = known


def placement_names() -> list[str]:
    """All names, built-in ones first. An entry point can't replace a built-in policy."""
    added = sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(BUILT_IN))
    return [*BUILT_IN, *added]


def placement_policy(name: str) -> PlacementPolicy:
    """Make a placement policy by its name.

    Raises:
        UnknownPlacementPolicyError: there is no policy of that name.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    for point in entry_points(group=ENTRY_POINTS, name=name):
        made: PlacementPolicy = point.load()()
        return made
    raise UnknownPlacementPolicyError(name, placement_names())
