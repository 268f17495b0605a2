"""What policies may ask for."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAll:
    """The model sees the whole conversation."""


ContextPlan = KeepAll


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseKv:
    """Give back a context's blocks; full ones still hit until they are taken."""

    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """Actions in order."""

    actions: Sequence[ReleaseKv]
