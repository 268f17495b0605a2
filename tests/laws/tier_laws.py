"""KV that went through a tier is the KV that stayed: the laws of tiers, for any model."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from engine.ipc.messages import Edit, Sampling
from engine.kv.tiers.store import Blocks
from engine.kv.tiers.tiers import Tiers
from tests.harness.loop import Engine
from tests.laws.backend import block_bytes
from tests.laws.law_suite import LawSuite
from tests.laws.tiered_operations import TieredOperations
from tests.soak import SOAK
from tests.tiers.support import PromptMover, tiers_of

_SLOTS = 200


each_tier = pytest.mark.parametrize("tier", ["host", "disk"])


class TierLaws(LawSuite):
    operations: ClassVar = TieredOperations

    def tiers(self, tier: str, folder: Path) -> Callable[[Blocks], Tiers]:
        size = block_bytes(self.backend.runner(1, 16))
        return tiers_of(PromptMover(), size, folder=folder, **{tier: _SLOTS})

    def fill(self, engine: Engine, sampling: Sampling) -> None:
        """Take every block of a pool of 16."""
        engine.open("filler")
        self.turn(engine, "filler", self.prompt(220, 3), sampling)
        engine.close("filler")

    @each_tier
    @pytest.mark.parametrize("parked", [True, False])
    def test_swapped_is_resident(
        self, sampling: Sampling, tier: str, tmp_path: Path, parked: bool
    ) -> None:
        with self.engine(num_blocks=16, tiers=self.tiers(tier, tmp_path)) as engine:
            ids: list[int] = []
            engine.open("a")
            for number in range(3):
                prompt = self.prompt(30, number)
                ids += prompt
                kept = self.turn(engine, "a", prompt, sampling)
                assert kept == self.expected(ids, sampling)
                ids += kept
                if parked:
                    engine.park("a")
                self.fill(engine, sampling)
            assert engine.stats().restored_tokens_total > 0

    def test_restored_after_a_restart_is_never_stopped(
        self, sampling: Sampling, tmp_path: Path
    ) -> None:
        first, more = self.prompt(40), self.prompt(20, 1)
        with self.engine(tiers=self.tiers("disk", tmp_path)) as engine:
            engine.open("a")
            ids = first + self.turn(engine, "a", first, sampling)
            engine.loop.close()
        with self.engine(tiers=self.tiers("disk", tmp_path)) as engine:
            engine.open("a", ids)
            assert self.turn(engine, "a", more, sampling) == self.expected(ids + more, sampling)
            assert engine.stats().restored_tokens_total >= (len(ids) - 3) // 16 * 16  # owed ids
            engine.loop.close()

    @each_tier
    def test_preempted_to_a_tier_is_uninterrupted(
        self, sampling: Sampling, tier: str, tmp_path: Path
    ) -> None:
        with self.engine(num_blocks=12, tiers=self.tiers(tier, tmp_path)) as engine:
            prompts = [self.prompt(60, seed) for seed in range(3)]
            turns = []
            for number, prompt in enumerate(prompts):
                engine.open(f"s{number}")
                turns.append(
                    self.submit(engine, f"s{number}", prompt, sampling, stop=False, output=40)
                )
            engine.run()
            assert engine.stats().preemptions_total > 0
            assert engine.stats().tiers[tier].stored_bytes_total > 0
            for turn, prompt in zip(turns, prompts, strict=True):
                assert engine.kept(turn) == self.expected(prompt, sampling, stop=False, output=40)

    @each_tier
    def test_shifted_and_swapped_is_shifted(
        self, sampling: Sampling, tier: str, tmp_path: Path
    ) -> None:
        replies = []
        for tiers in (None, self.tiers(tier, tmp_path)):
            with self.engine(num_blocks=16, tiers=tiers) as engine:
                engine.open("a")
                first = self.prompt(70)
                ids = first + self.turn(engine, "a", first, sampling)
                engine.edit("a", Edit(at=len(ids), dropped=((20, 45),)))
                self.turn(engine, "a", self.prompt(20, 1), sampling)
                if tiers:
                    self.fill(engine, sampling)
                replies.append(self.turn(engine, "a", self.prompt(20, 2), sampling))
                assert bool(engine.stats().restored_tokens_total) == (tiers is not None)
        assert replies[0] == replies[1]

    @pytest.mark.soak
    @pytest.mark.timeout(3600 if SOAK else 900)
    @pytest.mark.parametrize("seed", range(4))
    def test_random_operations_on_tiers_answer_like_a_model_without_cache(
        self, sampling: Sampling, tmp_path: Path, seed: int
    ) -> None:
        self.operations(self.backend, sampling, seed, drafting=self.drafting, folder=tmp_path).run(
            self.backend.steps
        )
