"""Whether a backend computes what it should, on a tiny model: logits, tokens, memory.

Everything is compared with float32 on the CPU or, where tokens are, with the logits that the same
backend computes of the whole text in one step. The pool is filled with NaN first: what no token
has written must not be read.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from benchmarks.device.bench_engine import BenchEngine
from benchmarks.device.shapes import shape_of
from engine.config import EngineConfig
from engine.ids import BlockId
from engine.kv.page_table import PageEntry
from engine.kv.step import SequenceStep
from engine.model.runner import LoadedModel, TorchRunner, prepare_model

TOLERANCES = {"float32": 1e-3, "bfloat16": 6e-2, "float16": 8e-3}
"""Of logits by dtype: the norm of the difference to float32 on the CPU by the norm of these.

Twice what rounding comes to on the `torch` backend, weights included (their attention is sharp,
so it is more than with trained ones); of float32 a thousand times as much, for tf32.
"""
_EIGHT_BIT_TOLERANCE = 0.25  # where KV has 8 bits
_TOKENS = 150
_REPLY = 24
_CHUNKS = (64, 1, 37, 48)
_POOL = 64  # blocks; a few more than the longest text needs
_NO_NUMBER, _FAR = 0xFF, 0x44  # bytes of values


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was found, and the most that it may be. A NaN never passes."""

    name: str
    found: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether it is within bounds."""
        return self.found <= self.allowed


def check_backend(config: EngineConfig, seed: int) -> list[Check]:
    """Check one backend in one dtype. `config` names them, and the device."""
    spec = shape_of("tiny").spec
    config = msgspec.structs.replace(
        config,
        max_num_batched_tokens=512,
        max_num_seqs=4,
        num_speculative_tokens=0,
        idle_prefill=False,
        target_inter_token_ms=0.0,
        host_tier_size=1 << 24,
    )
    loaded = prepare_model(spec, config)
    tolerance = _tolerance(loaded)
    dice = random.Random(seed)  # noqa: S311 -- no secret
    ids = [dice.randrange(spec.vocab_size) for _ in range(_TOKENS)]
    return [
        Check(name="logits", found=_logits_error(loaded, ids, dice), allowed=tolerance),
        *_token_laws(config, loaded, ids, tolerance),
    ]


def _tolerance(loaded: LoadedModel) -> float:
    if loaded.kv_dtype in TOLERANCES:
        return max(TOLERANCES[loaded.dtype], TOLERANCES[loaded.kv_dtype])
    return _EIGHT_BIT_TOLERANCE


def _logits_error(loaded: LoadedModel, ids: Sequence[int], dice: random.Random) -> float:
    """Of all tokens of a text, in chunks, on blocks in no order."""
    reference = prepare_model(
        loaded.spec, EngineConfig(model="random", device="cpu", dtype="float32")
    )
    expected = _logits(reference, ids, [len(ids)], list(range(_POOL)))
    blocks = dice.sample(range(_POOL), _POOL)
    found = _logits(loaded, ids, _CHUNKS, blocks)
    return float((found - expected).norm() / expected.norm())


def _logits(
    loaded: LoadedModel, ids: Sequence[int], chunks: Sequence[int], blocks: Sequence[int]
) -> Tensor:
    """[len(ids), vocab] on the CPU in float32, computed chunk by chunk; the chunks are all ids."""
    runner = loaded.runner(_POOL)
    _poison(runner, loaded)
    parts, start = [], 0
    for chunk in chunks:
        stop = start + chunk
        step = SequenceStep(
            token_ids=ids[start:stop],
            first_position=start,
            entries=_entries(stop, blocks, loaded.block_size),
            sample=None,
        )
        parts.append(runner.logits([step], every_token=True).float().cpu())
        start = stop
    return torch.cat(parts)


def _poison(runner: TorchRunner, loaded: LoadedModel) -> None:
    """Bytes that are no number in any floating-point type.

    Where K lies at its position whole pages are read, and V of slots that no token fills meets
    weights of 0 (engine.kv.tensors): it is a number there, but far from any that is right.
    """
    layers = loaded.spec.num_layers
    shape = (layers, 2, loaded.kv_bytes_per_block // (2 * layers))  # of K and of V
    data = np.full(shape, _NO_NUMBER, dtype=np.uint8)
    if runner.store.position_form == "absolute":
        data[:, 1] = _FAR
    for block in range(_POOL):
        runner.write_block(block, data.ravel())


def _entries(tokens: int, blocks: Sequence[int], size: int) -> list[PageEntry]:
    return [
        PageEntry(BlockId(block), 0, min(size, tokens - base) - 1, base)
        for block, base in zip(blocks, range(0, tokens, size), strict=False)
    ]


def _token_laws(
    config: EngineConfig, loaded: LoadedModel, ids: list[int], tolerance: float
) -> list[Check]:
    """Token by token on pages, in chunks, and from the host tier: always as computed at once."""

    def law(name: str, text: list[int], reply: list[int]) -> Check:
        return Check(name=name, found=_unlikely(loaded, text, reply, tolerance), allowed=0.0)

    whole, violations = _reply_of(config, loaded, ids)
    cut = msgspec.structs.replace(config, max_num_batched_tokens=16)
    chunked, more = _reply_of(cut, loaded, ids)
    swapped, text, from_host, again = _swapped_reply(config, loaded, ids)
    return [
        law("paged = dense: tokens that are not", ids, whole),
        law("chunked = whole: tokens that are not", ids, chunked),
        law("swapped = resident: tokens that are not", text, swapped),
        Check(name="pages that did not come from the host tier", found=from_host, allowed=0),
        Check(
            name="leaks and violations",
            found=len([*violations, *more, *again]),
            allowed=0,
        ),
    ]


def _reply_of(
    config: EngineConfig, loaded: LoadedModel, ids: list[int]
) -> tuple[list[int], list[str]]:
    engine = BenchEngine(config, loaded, _POOL)
    session = engine.open([])
    reply = engine.turn(session, ids, _REPLY)
    engine.end(session)
    return reply, engine.close()


def _swapped_reply(
    config: EngineConfig, loaded: LoadedModel, ids: list[int]
) -> tuple[list[int], list[int], int, list[str]]:
    """A second turn after its session's KV was overwritten on the device: reply, text before it."""
    engine = BenchEngine(config, loaded, _POOL)
    session = engine.open([])
    text = ids + engine.turn(session, ids, _REPLY)
    pages = (len(text) - 1) // loaded.block_size
    engine.park_s(session, pages * loaded.kv_bytes_per_block)
    engine.overwrite()
    more = ids[:9]
    _, found = engine.first_token_s(session, more)
    engine.cut(session, len(text))
    reply = engine.turn(session, more, _REPLY)
    engine.end(session)
    missing = max(0, pages * loaded.block_size - found.restored_tokens)
    return reply, text + more, missing, engine.close()


def _unlikely(
    loaded: LoadedModel, text: Sequence[int], reply: Sequence[int], tolerance: float
) -> int:
    """Tokens of a greedy reply that are not the likeliest, by more than logits may be wrong."""
    ids = [*text, *reply[:-1]]
    logits = _logits(loaded, ids, [len(ids)], list(range(_POOL)))[len(text) - 1 :]
    drawn = logits.gather(1, torch.tensor(reply)[:, None])[:, 0]
    slack = 4 * tolerance * logits.square().mean(dim=1).sqrt()
    return int((~(logits.amax(dim=1) - drawn <= slack)).sum())
