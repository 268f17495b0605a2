"""Context policies by name: built-in ones, and those of other packages.

A package adds a context policy by an entry point of the group `sessiond.context_policies`: its name
is the `type` that clients ask for, its object a class that takes the parameters as keywords.
"""

import inspect
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from policies.keep_all import KeepAllPolicy
from policies.last_turns import LastTurns
from policies.parameters import ParameterError
from policies.protocol import ContextPolicy
from policies.sliding_window import SlidingWindow
from policies.summarize import Compaction
from policies.token_budget import TokenBudget

CONTEXT_POLICY_GROUP = "sessiond.context_policies"

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
                does not take its value.
        """
        policy = self._classes.get(name)
        if policy is None:
            raise ParameterError("type", name, ", ".join(self.names))
        known = self.parameters(name)
        for parameter, value in parameters.items():
            if parameter not in known:
                allowed = ", ".join(known) or f"left out: {name} has no parameters"
                raise ParameterError(parameter, value, allowed)
        return policy(**parameters)


def installed_context_policies() -> ContextPolicyRegistry:
    """Built-in policies, and those of all installed packages.

    Raises:
        PluginError: one of them can't be loaded, is no policy, or has a name that is taken.
    """
    return ContextPolicyRegistry(_load(entry_points(group=CONTEXT_POLICY_GROUP)))


def _load(points: Iterable[EntryPoint]) -> dict[str, type[ContextPolicy]]:
    plugins: dict[str, type[ContextPolicy]] = {}
    for point in points:
        origin = (
            f"context policy {point.name!r} of {point.dist.name if point.dist else point.value}"
        )
        if point.name in CONTEXT_POLICIES or point.name in plugins:
            raise PluginError(f"{origin}: the name is taken")
        try:
            policy = point.load()
        except Exception as error:
            raise PluginError(f"{origin} can't be loaded: {error}") from error
        if not isinstance(policy, type) or not callable(getattr(policy, "plan", None)):
            raise PluginError(f"{origin}: {policy!r} is not a class with a method `plan`")
        plugins[point.name] = policy
    return plugins
