"""Measures the memory of a worst-case step, without weights and KV."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import SampleAt, SequenceStep
from engine.kv.tensors import KvStore
from engine.model.attention.gather import MAX_GATHERED_TOKENS
from engine.model.batch import build_batch
from engine.model.llama import Llama


def activation_peak(
    model: Llama, store: KvStore, *, max_num_batched_tokens: int, max_num_seqs: int, context: int
) -> int:
    """Run the two worst steps over one layer and the head; return the most bytes held at once.

    One step prefills `max_num_batched_tokens` at the end of `context` tokens, one decodes
    `max_num_seqs` sequences that together fill the largest gather. Layers reuse each other's
    memory, so one layer is enough. Blocks are position-free, so a store of one block stands for
    any context. Index arrays of further contexts (about 300 bytes a token, under 2 % of its KV)
    are not counted.
    """
    new = min(max_num_batched_tokens, context)
    prefill = [_step(store.block_size, context, new)]
    each = min(context, -(-MAX_GATHERED_TOKENS // max_num_seqs))
    decode = [_step(store.block_size, each, 1)] * max_num_seqs
    return max(_peak_of(model, store, steps) for steps in (prefill, decode))


def _step(block_size: int, context: int, new: int) -> SequenceStep:
    entries = [
        PageEntry(BlockId(0), 0, min(block_size, context - base) - 1, base)
        for base in range(0, context, block_size)
    ]
    return SequenceStep(
        token_ids=[0] * new,
        first_position=context - new,
        entries=entries,
        sample=SampleAt(sampling=Sampling(), output_index=0),
    )


def _peak_of(model: Llama, store: KvStore, steps: Sequence[SequenceStep]) -> int:
    batch = build_batch(steps, store)
    if store.device.type == "cuda":
        before = torch.cuda.memory_allocated(store.device)
        torch.cuda.reset_peak_memory_stats(store.device)
        model.forward(batch, store, num_layers=1)
        return torch.cuda.max_memory_allocated(store.device) - before
    live = _LiveBytes()
    with live:
        model.forward(batch, store, num_layers=1)
    return live.peak


class _LiveBytes(TorchFunctionMode):
    """Counts the bytes of live tensors that were made in its scope: torch has no count on the CPU.

    Temporary memory of kernels is not counted; it is small compared with activations. This is a
    function mode, since a dispatch mode imports the compiler, which takes a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._made: dict[Any, int] = {}  # by StorageWeakRef
        self._foreign: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and record its arguments and results."""
        del types
        self._foreign |= {_ref(tensor) for tensor in _tensors((args, kwargs))} - self._made.keys()
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            if _ref(tensor) not in self._foreign:
                self._made[_ref(tensor)] = tensor.untyped_storage().nbytes()
        self._made = {ref: size for ref, size in self._made.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self._made.values()))
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _ref(tensor: Tensor) -> Any:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's
