"""Policies by name. The loop names those in force; no setting chooses another yet."""

from collections.abc import Mapping
from types import MappingProxyType

from policies.keep_all import KeepAllPolicy
from policies.protocol import ContextPolicy

CONTEXT_POLICIES: Mapping[str, ContextPolicy] = MappingProxyType({"none": KeepAllPolicy()})
