"""Runs this engine's models at each precision: logits of windows, greedy replies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.kernels import BLOCK, GREEDY, entries
from benchmarks.quality.measures import Floats
from benchmarks.quality.texts import WINDOW, Ids
from engine.config import Dtype, EngineConfig, KvDtype, Weights
from engine.files.spec_reader import read_spec
from engine.kv.step import SequenceStep
from engine.model.choice import prepare

AT_ONCE = 25  # replies


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Settings that are measured together."""

    name: str
    dtype: Dtype = "auto"
    weights: Weights = "native"
    kv_cache_dtype: KvDtype = "auto"


REFERENCE = Precision(name="float32 (torch)", dtype="float32")
PRECISIONS = (
    Precision(name="native, KV bfloat16"),
    Precision(name="native, KV float32", kv_cache_dtype="float32"),
    Precision(name="native, KV int8", kv_cache_dtype="int8"),
    Precision(name="dequantized bfloat16", weights="dequantized"),
    Precision(name="dequantized, KV int8", weights="dequantized", kv_cache_dtype="int8"),
)


class _Runner(Protocol):
    def execute(self, batch: Sequence[SequenceStep]) -> list[int]: ...

    def logits(self, batch: Sequence[SequenceStep], *, every_token: bool = False) -> Any: ...


class Ours:
    """One model at one precision. `arithmetic` says what the settings came to."""

    def __init__(self, model: Path, precision: Precision, longest: int) -> None:
        config = EngineConfig(
            model=str(model),
            device="cpu",
            dtype=precision.dtype,
            weights=precision.weights,
            kv_cache_dtype=precision.kv_cache_dtype,
        )
        loaded = prepare(read_spec(model), config)
        self.arithmetic = (
            f"{loaded.attention}: weights {loaded.weights}, activations {loaded.dtype}, "
            f"KV {loaded.kv_dtype}"
        )
        self.kv_bytes_per_token = loaded.kv_bytes_per_block // BLOCK
        self._each = -(-longest // BLOCK)  # blocks of a sequence
        self._runner: _Runner = loaded.runner(AT_ONCE * self._each)

    def window_logits(self, windows: Ids) -> Iterator[Floats]:
        """Yield, per window, logits [WINDOW / 2 - 1, vocab] of what follows its second half."""
        middle = WINDOW // 2
        for window in windows:
            ids = window.tolist()
            self._runner.execute([self._step(0, ids, 0, middle, draws=False)])
            step = self._step(0, ids, middle, WINDOW - 1)
            yield np.asarray(self._runner.logits([step], every_token=True), dtype=np.float32)

    def replies(
        self, prompts: Sequence[Sequence[int]], stop_ids: frozenset[int], longest: int
    ) -> list[list[int]]:
        """Reply to each prompt, greedily. A stop id, if one was drawn, is the reply's last."""
        replies: list[list[int]] = []
        for start in range(0, len(prompts), AT_ONCE):
            replies += self._replies(prompts[start : start + AT_ONCE], stop_ids, longest)
        return replies

    def _replies(
        self, prompts: Sequence[Sequence[int]], stop_ids: frozenset[int], longest: int
    ) -> list[list[int]]:
        contexts = [list(prompt) for prompt in prompts]
        steps = [self._step(i, ids, 0, len(ids)) for i, ids in enumerate(contexts)]
        drawn = [self._runner.execute([step])[0] for step in steps]
        running = list(range(len(contexts)))
        while running:
            for place, token in zip(running, drawn, strict=True):
                contexts[place].append(token)
            running = [
                place
                for place in running
                if contexts[place][-1] not in stop_ids
                and len(contexts[place]) - len(prompts[place]) < longest
            ]
            steps = [
                self._step(i, contexts[i], len(contexts[i]) - 1, len(contexts[i])) for i in running
            ]
            drawn = self._runner.execute(steps) if steps else []
        return [ids[len(prompt) :] for ids, prompt in zip(contexts, prompts, strict=True)]

    def _step(
        self, place: int, ids: list[int], start: int, end: int, *, draws: bool = True
    ) -> SequenceStep:
        blocks = list(range(place * self._each, (place + 1) * self._each))
        return SequenceStep(
            token_ids=ids[start:end],
            first_position=start,
            entries=entries(blocks, end),
            sample=GREEDY if draws else None,
        )
