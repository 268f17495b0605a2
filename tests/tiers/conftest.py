"""Engines are audited here as in tests/core."""

from pathlib import Path

import pytest

from tests.core.conftest import make_engine
from tests.harness.loop import KV_BYTES_PER_BLOCK, Engine
from tests.tiers.engine_words import QUIET
from tests.tiers.support import LateMover, PromptMover, tiers_of

__all__ = ["make_engine"]


@pytest.fixture(params=["host", "disk"])
def tier(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make(make_engine, tmp_path: Path):
    """An engine with one tier of 256 blocks, or what is asked for."""

    def build(tier: str = "disk", mover: LateMover | None = None, **settings: object) -> Engine:
        slots = {tier: 256} if tier != "both" else {"host": 256, "disk": 256}
        slots |= {key: settings.pop(key) for key in ("host", "disk") if key in settings}
        build_tiers = tiers_of(mover or PromptMover(), KV_BYTES_PER_BLOCK, folder=tmp_path, **slots)
        return make_engine(tiers=build_tiers, **{**QUIET, **settings})

    return build
