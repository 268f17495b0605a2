"""Steps and page tables by hand, and a tiny model. Used by all model tests."""

import dataclasses

import torch

from engine.config import EngineConfig
from engine.files.spec_reader import read_spec
from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import SampleAt, SequenceStep
from engine.model.attention.gather import GatherAttention
from engine.model.attention.reference.backend import attend_with_sdpa
from engine.model.layers import Arithmetic, RotaryTable, TorchOps
from engine.model.llama import Llama
from engine.model.runner import LoadedModel, prepare_model
from tests.laws.law_model import law_spec, random_weights

GREEDY = Sampling(temperature=0.0)


def draw(index=0, sampling=GREEDY):
    return SampleAt(sampling=sampling, output_index=index)


def table(blocks, length, block_size=16):
    """Page table of `length` tokens from position 0 over the given blocks."""
    return [
        PageEntry(BlockId(block), 0, min(block_size, length - base) - 1, base)
        for block, base in zip(blocks, range(0, length, block_size), strict=False)
    ]


def step(ids, start, blocks, *, sample=None, block_size=16):
    """Compute `ids[start:]` of a sequence that lies in `blocks` from position 0."""
    return SequenceStep(
        token_ids=list(ids[start:]),
        first_position=start,
        entries=table(blocks, len(ids), block_size),
        sample=sample,
    )


def prefill_logits(runner, ids, blocks, chunk=10_000):
    """Logits [len(ids), vocab] of every token, computed chunk by chunk."""
    parts = [
        runner.logits(
            [step(ids[: start + chunk], start, blocks, block_size=runner.store.block_size)],
            every_token=True,
        )
        for start in range(0, len(ids), chunk)
    ]
    return torch.cat(parts)


def greedy_reply(runner, ids, blocks, count, sampling=GREEDY):
    """Prefill, then decode `count` tokens one by one."""
    ids, size = list(ids), runner.store.block_size
    start = 0
    for index in range(count):
        one = step(ids, start, blocks, sample=draw(index, sampling), block_size=size)
        start = len(ids)
        ids += runner.execute([one])
    return ids[-count:]


def random_ids(count, vocab=256, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()


def tiny_model(dtype=torch.float32, kv_dtype=None, block_size=16, **spec_changes):
    """The law model's weights on the torch backend."""
    spec = dataclasses.replace(law_spec(), **spec_changes)
    device = torch.device("cpu")
    angles = torch.float64 if dtype == torch.float64 else torch.float32
    table = RotaryTable(spec.rope, spec.head_dim, dtype=angles, device=device)
    arithmetic = Arithmetic(ops=TorchOps(), table=table, dtype=dtype, device=device)
    attention = GatherAttention("torch", attend_with_sdpa, spec, arithmetic)
    return LoadedModel(
        llama=Llama(spec, random_weights(spec, 0, dtype), attention, arithmetic),
        kv_dtype=kv_dtype or dtype,
        block_size=block_size,
        max_model_len=spec.max_position,
        fingerprint="tiny",
    )


def load(path, **settings):
    return prepare_model(read_spec(path), EngineConfig(model=str(path), device="cpu", **settings))
