"""Conversations over flash-attn, whose pages are the pool's blocks, answer as the law model."""

from collections.abc import Sequence

from engine.ipc.messages import Sampling
from engine.kv.step import ModelRunner
from tests.laws.edit_laws import Played
from tests.laws.law_suite import LawSuite
from tests.laws.test_law_backend import LawBackend
from tests.model.flash_models import flash_model


class FlashBackend(LawBackend):
    def __init__(self, version: str, block_sizes: Sequence[int]) -> None:
        super().__init__()
        self.version = version
        self.block_sizes = block_sizes
        self.position_free = LawBackend()

    def runner(self, num_blocks: int, block_size: int) -> ModelRunner:
        return flash_model(self.version, block_size)[0].runner(num_blocks)


class FlashLaws(LawSuite):
    def test_turns_edits_forks_and_losses(self, sampling: Sampling, block_size: int) -> None:
        with self.engine(block_size=block_size, num_blocks=-(-260 // block_size) + 3) as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            whole, more = list(played.right.ids), self.prompt(5, 7)
            engine.fork("b", "a", len(whole))
            played.edit([(25, 60)])
            played.turn(20, 1)
            assert self.turn(engine, "b", more, sampling) == self.expected(whole + more, sampling)
            played.edit([(20, 30), (41, 50)])
            played.turn(33, 2)
            engine.release("a")
            played.turn(9, 3)


class TestVersion2(FlashLaws):
    backend = FlashBackend("2", (256,))


class TestVersion3(FlashLaws):
    backend = FlashBackend("3", (16, 48))


class TestVersion4(FlashLaws):
    backend = FlashBackend("4 on Hopper", (16,))
