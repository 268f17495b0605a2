"""Builds an engine: loads the model, measures, sizes the pool."""

from collections.abc import Callable

from engine.config import EngineConfig
from engine.loop import EngineLoop
from engine.messages import EngineInfo, TurnEvent


def build_engine(
    config: EngineConfig, emit: Callable[[TurnEvent], None], *, report: Callable[[str], None]
) -> tuple[EngineLoop, EngineInfo]:
    """Load the model that `config` names, measure it, size its pool."""
    raise NotImplementedError
