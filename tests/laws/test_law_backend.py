"""The laws on the law backend: float64, every sum in one order, so equal means every bit."""

from collections.abc import Iterator

import pytest
import torch

from engine.kv.step import ModelRunner
from tests.laws.absolute_laws import AbsoluteLaws
from tests.laws.backend import DenseBackend
from tests.laws.engine_laws import EngineLaws
from tests.laws.law_model import law_runner
from tests.soak import SOAK

pytestmark = pytest.mark.second

_DENSE_BLOCKS = 40


class LawBackend(DenseBackend):
    vocab_size = 256
    stop_id = 7
    steps = 10_000 if SOAK else 200
    block_sizes = (1, 3, 8, 16, 256)

    def __init__(self) -> None:
        self.dense = law_runner(_DENSE_BLOCKS, block_size=16)

    def runner(self, num_blocks: int, block_size: int) -> ModelRunner:
        return law_runner(num_blocks, block_size=block_size)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The model is so small that handing work to threads costs more than doing it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class TestLawBackend(EngineLaws):
    backend = LawBackend()


class AbsoluteLawBackend(LawBackend):
    """Edits turn K, so that equal means every token, and no longer every bit."""

    def __init__(self) -> None:
        super().__init__()
        self.position_free = LawBackend()

    def runner(self, num_blocks: int, block_size: int) -> ModelRunner:
        return law_runner(num_blocks, block_size=block_size, position_form="absolute")


class TestAbsoluteLawBackend(AbsoluteLaws):
    backend = AbsoluteLawBackend()


class TestLawBackendDrafting(EngineLaws):
    """With drafts, true and untrue, in every step that draws."""

    backend = LawBackend()
    drafting = True
