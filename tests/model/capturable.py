"""A backend that can be captured, and shows what a graph would get wrong. On the CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.kv.tensors import KvStore
from engine.model.attention.gather import GatherAttention
from engine.model.attention.protocol import AttentionStep
from engine.model.batch import Batch
from engine.model.llama import Llama
from tests.laws.law_model import law_model


class FilledStep:
    """Attends for the batch that was filled in last; rows beyond get a value that shows."""

    def __init__(self, backend: "Capturable", store: KvStore, tokens: int, pages: int) -> None:
        self.backend = backend
        self.store = store
        self.tokens = tokens
        self.pages = pages
        self.fills = 0
        self.step: AttentionStep | None = None
        self.rows = 0

    def fill(self, batch: Batch) -> bool:
        if self.backend.refuses:
            return False
        assert len(batch.token_ids) <= self.tokens
        assert len(batch.pages) <= self.pages
        self.fills += 1
        self.rows = len(batch.token_ids)
        self.step = self.backend.prepare(batch, self.store)
        return True

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        out = torch.full((len(queries), queries[0].numel()), 3.5, dtype=queries.dtype)
        if self.step is not None:
            out[: self.rows] = self.step.attend(layer, queries[: self.rows])
        return out


class Capturable:
    """Implements CapturableBackend by another backend, with the same bits in each row."""

    def __init__(self, inner: GatherAttention) -> None:
        self.name = "capturable"
        self.inner = inner
        self.refuses = False
        self.fixed: list[FilledStep] = []

    def prepare(self, batch: Batch, store: KvStore) -> AttentionStep:
        return self.inner.prepare(batch, store)

    def fixed_step(
        self, store: KvStore, *, tokens: int, pages: int, longest: int, max_position: int
    ) -> FilledStep:
        self.fixed.append(FilledStep(self, store, tokens, pages))
        return self.fixed[-1]


def capturable_llama() -> Llama:
    """The law model: float64, sums in one order, so that equal means every bit."""
    llama = law_model().llama
    return Llama(llama.spec, llama.weights, Capturable(llama.attention), llama.arithmetic)


_WITH_THE_HOST = {"tensor", "as_tensor", "from_numpy", "item", "tolist", "cpu", "numpy", "nonzero"}


class NothingWithTheHost(TorchFunctionMode):
    """Refuses what a capture on a card can't have: values from the host, or for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = getattr(func, "__name__", "")
        assert name not in _WITH_THE_HOST, f"{name} while a step is captured"
        return func(*args, **(kwargs or {}))
