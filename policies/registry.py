"""Policies by the names that settings and requests use."""

from collections.abc import Mapping
from types import MappingProxyType

from policies.keep_all import KeepAllPolicy
from policies.lru import LeastRecentlyUsed
from policies.protocol import ContextPolicy, PlacementPolicy

CONTEXT_POLICIES: Mapping[str, ContextPolicy] = MappingProxyType({"none": KeepAllPolicy()})
PLACEMENT_POLICIES: Mapping[str, PlacementPolicy] = MappingProxyType({"lru": LeastRecentlyUsed()})
