"""Rates and times of one backend on a model of some shape, beside the floors that the card sets."""

import random
import statistics
import time
from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from benchmarks.device.bench_engine import BenchEngine
from benchmarks.device.ceilings import Ceilings
from benchmarks.device.clock import DeviceClock
from benchmarks.device.shapes import Shape, decode_bytes, prefill_operations
from engine.config import EngineConfig
from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import SampleAt, SequenceStep
from engine.model.runner import LoadedModel

BATCHES = (1, 8, 32, 64)
_WARM_UP_STEPS = 3
_RESUMED_WITH = 16  # new tokens of a turn that comes back
_RELEASES = 20
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. `floor`: what the card's ceiling would give, in the same unit; None: no such."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What was asked for: at least, or at most, `wanted`."""

    name: str
    value: float
    wanted: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether it is reached. A NaN is not."""
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted


class Measures:
    """Measures one loaded model; `rows` and `goals` fill as it does."""

    def __init__(
        self, config: EngineConfig, loaded: LoadedModel, shape: Shape, ceilings: Ceilings
    ) -> None:
        self._config = config
        self._loaded = loaded
        self._shape = shape
        self._ceilings = ceilings
        self._dice = random.Random(1)  # noqa: S311 -- no secret
        self.rows: list[Row] = []
        self.goals: list[Goal] = []
        self.faults: list[str] = []

    def decode(self, clock: DeviceClock) -> None:
        """Streams that all write, through the whole engine; and what of a step is the device's."""
        for batch in BATCHES:
            # those who write already go on while the others' prompts are computed
            meanwhile = 2 * batch * self._shape.context // self._shape.step + 8
            reply = meanwhile + _WARM_UP_STEPS + self._shape.decode_steps
            engine = self._engine(self._config, batch * (self._shape.context + reply))
            sessions = [engine.open([]) for _ in range(batch)]
            for session in sessions:
                engine.begin(session, self._ids(self._shape.context), reply)
            engine.step_until_all_write(batch)
            step_s = self._step_s(engine)
            for session in sessions:
                engine.end(session)
            self.faults += engine.close()
            self._tell_decode(batch, step_s, self._busy_s(clock, batch))

    def _step_s(self, engine: BenchEngine) -> float:
        times = []
        for _ in range(_WARM_UP_STEPS + self._shape.decode_steps):
            started_s = time.perf_counter()
            engine.loop.step()
            times.append(time.perf_counter() - started_s)
        return statistics.median(times[_WARM_UP_STEPS:])

    def _busy_s(self, clock: DeviceClock, batch: int) -> float:
        """Seconds that the device needs for such a step when it never waits for Python.

        A step that is not captured takes its tables from the host, and does wait.
        """
        size, context = self._loaded.block_size, self._shape.context
        each = -(-(context + 1) // size)
        runner = self._loaded.runner(batch * each)
        steps = [
            SequenceStep(
                token_ids=[number % self._loaded.spec.vocab_size],
                first_position=context,
                entries=[
                    PageEntry(
                        BlockId(number * each + index), 0, min(size, context + 1 - base) - 1, base
                    )
                    for index, base in enumerate(range(0, context + 1, size))
                ],
                sample=SampleAt(sampling=Sampling(temperature=0.0), output_index=0),
            )
            for number in range(batch)
        ]
        runner.logits(steps)
        work = runner.captured(steps) or partial(runner.logits, steps)
        with torch.inference_mode():
            return statistics.median(
                clock.once_s(work, ahead=True) for _ in range(self._shape.repeats)
            )

    def _tell_decode(self, batch: int, step_s: float, busy_s: float) -> None:
        loaded = self._loaded
        least = decode_bytes(
            loaded.spec,
            weight_bytes=_DTYPE_BYTES[loaded.dtype],
            kv_bytes_per_token=loaded.kv_bytes_per_block / loaded.block_size,
            batch=batch,
            context=self._shape.context,
        )
        floor_s = least / self._ceilings.memory
        name = f"decode, {batch} at once"
        self.rows += [
            Row(name=name, value=batch / step_s, unit="tokens/s", floor=batch / floor_s),
            Row(
                name=f"{name}: Python's part of a step",
                value=1000 * (step_s - busy_s),
                unit="ms",
                note=f"of {1000 * step_s:.2f}; the device alone {1000 * busy_s:.2f}",
            ),
        ]
        if batch == max(BATCHES):
            self.goals.append(
                Goal(
                    name=f"decode at {batch}: step by memory floor",
                    value=step_s / floor_s,
                    wanted=1.3,
                    at_most=True,
                )
            )

    def prefill(self) -> None:
        """A long prompt alone, from its submission to its first token."""
        engine = self._engine(self._config, self._shape.long + 64)
        times = []
        for number in range(self._shape.repeats + 1):
            session = engine.open([], salt=str(number).encode())
            seconds, _ = engine.first_token_s(session, self._ids(self._shape.long))
            times.append(seconds)
            engine.end(session)
        self.faults += engine.close()
        tokens, seconds = self._shape.long, statistics.median(times[1:])
        operations = prefill_operations(self._loaded.spec, tokens)
        self.rows.append(
            Row(
                name=f"prefill of {tokens}",
                value=tokens / seconds,
                unit="tokens/s",
                floor=tokens * self._ceilings.matrix / operations,
            )
        )
        self.goals.append(
            Goal(
                name="prefill: part of the matrix rate",
                value=operations / seconds / self._ceilings.matrix,
                wanted=0.5,
            )
        )

    def resume(self) -> None:
        """A long session goes on: its KV on the device, in host memory, nowhere. And its moves."""
        long, size = self._shape.long, self._loaded.block_size
        kv_bytes = long // size * self._loaded.kv_bytes_per_block
        config = msgspec.structs.replace(self._config, host_tier_size=3 * kv_bytes)
        engine = self._engine(config, long + 64)
        times: dict[str, list[float]] = {"cold": [], "device": [], "host": [], "out": [], "in": []}
        for number in range(self._shape.repeats + 1):
            session = engine.open([], salt=str(number).encode())
            times["cold"].append(engine.first_token_s(session, self._ids(long))[0])
            more = self._ids(_RESUMED_WITH)
            times["device"].append(engine.first_token_s(session, more)[0])
            engine.cut(session, long)
            times["out"].append(engine.park_s(session, kv_bytes))
            engine.overwrite()
            before = engine.host.fetch_times.total
            seconds, found = engine.first_token_s(session, more)
            times["host"].append(seconds)
            times["in"].append(engine.host.fetch_times.total - before)
            if found.restored_tokens < long:
                self.faults.append(f"only {found.restored_tokens} tokens came back from the host")
            engine.end(session)
        self.faults += engine.close()
        medians = {name: statistics.median(values[1:]) for name, values in times.items()}
        self._tell_resume(medians)
        self._tell_moves(kv_bytes / medians["out"], kv_bytes / medians["in"])

    def _tell_resume(self, seconds: dict[str, float]) -> None:
        long = self._shape.long
        for name, where in (
            ("cold", "computed again"),
            ("host", "back from the host"),
            ("device", "still on the device"),
        ):
            row = f"first token of a session of {long}, {where}"
            self.rows.append(Row(name=row, value=1000 * seconds[name], unit="ms"))
        self.goals.append(
            Goal(
                name="resume from the host: times as fast as computing",
                value=seconds["cold"] / seconds["host"],
                wanted=5.0,
            )
        )

    def _tell_moves(self, out: float, back: float) -> None:
        ceilings = self._ceilings
        for name, rate, most in (
            ("device to host", out, ceilings.out),
            ("host to device", back, ceilings.back),
        ):
            self.rows.append(Row(name=name, value=rate / 1e9, unit="GB/s", floor=most / 1e9))
        self.goals.append(
            Goal(
                name="swap: part of a plain pinned copy, the worse way",
                value=min(out / ceilings.out, back / ceilings.back),
                wanted=0.8,
            )
        )

    def reclaim(self) -> None:
        """A long session's blocks are given back."""
        engine = self._engine(self._config, self._shape.long + 64)
        session = engine.open([])
        engine.turn(session, self._ids(self._shape.long), 1)
        times = []
        for _ in range(_RELEASES):
            engine.cut(session, self._shape.long)
            times.append(1e6 * engine.release_s(session))
            engine.first_token_s(session, self._ids(1))  # which finds all of it in the cache
        engine.end(session)
        self.faults += engine.close()
        for name, value in (("median", statistics.median(times)), ("most", max(times))):
            row = f"release of {self._shape.long} tokens, {name} of {_RELEASES}"
            self.rows.append(Row(name=row, value=value, unit="us"))

    def _engine(self, config: EngineConfig, tokens: int) -> BenchEngine:
        size = self._loaded.block_size
        return BenchEngine(config, self._loaded, tokens // size + max(BATCHES))

    def _ids(self, count: int) -> list[int]:
        return self._dice.choices(range(self._loaded.spec.vocab_size), k=count)
