"""The laws of tiers where the device copies by itself, in an order of its own."""

from collections.abc import Callable
from pathlib import Path

from engine.kv.tiers.store import Blocks
from engine.kv.tiers.tiers import Tiers
from tests.laws.backend import FakeBackend, block_bytes
from tests.laws.tier_laws import TierLaws
from tests.laws.tiered_operations import TieredOperations
from tests.soak import SOAK
from tests.tiers.streaming import streamed_tiers_of


class StreamedOperations(TieredOperations):
    def tiers(self, size: int, **slots: object) -> Callable[[Blocks], Tiers]:
        return streamed_tiers_of(self.mover.random.random(), size, threads=self.mover, **slots)


class FewerSteps(FakeBackend):
    steps = 3000 if SOAK else 250


class TestStreamedLaws(TierLaws):
    backend = FewerSteps()
    operations = StreamedOperations

    def tiers(self, tier: str, folder: Path) -> Callable[[Blocks], Tiers]:
        size = block_bytes(self.backend.runner(1, 16))
        return streamed_tiers_of(7, size, folder=folder, **{tier: 200})
