"""How fast a parked conversation comes back: from host memory, from disk, or computed again.

    python -m benchmarks.resume MODEL.gguf

Beside each rate stands what the machine does without us in the same run: a plain copy of as many
bytes in memory, a plain read of as many bytes of the same file (bypassing the page cache where the
file system can).
"""

import argparse
import mmap
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.config import EngineConfig
from engine.core.loop import EngineLoop
from engine.files.spec_reader import read_spec
from engine.ids import SessionId, TurnId
from engine.ipc.messages import ParkContext, SetContext, SubmitTurn, TurnEvent, TurnStarted
from engine.kv.tiers.build import open_tiers
from engine.kv.tiers.disk import FILE_NAME
from engine.model.native import NativeModel, prepare_native_model
from engine.text.tokenizer import load_tokenizer

_ROUNDS = 7
_SESSION = SessionId("conv_1")
_READ_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumes:
    """Seconds per round, from the turn's arrival to its first step, beside the plain move."""

    ours_s: list[float]
    plain_s: list[float]

    def line(self, name: str, tokens: int, num_bytes: int) -> str:
        """Medians; the ratio is of each round's pair, since machines are noisy."""
        ours, plain = statistics.median(self.ours_s), statistics.median(self.plain_s)
        ratio = statistics.median(
            plain / ours for ours, plain in zip(self.ours_s, self.plain_s, strict=True)
        )
        return (
            f"{name:>9}: {1e6 * ours / tokens:8.2f} ms per 1k tokens, {num_bytes / ours / 1e9:6.2f}"
            f" GB/s; plain {num_bytes / plain / 1e9:6.2f} GB/s; {100 * ratio:4.0f} % of it"
        )


class Engine:
    """One engine in this thread, with one tier or none."""

    def __init__(self, model: NativeModel, config: EngineConfig, num_blocks: int) -> None:
        self._started: list[TurnStarted] = []
        runner = model.runner(num_blocks)
        self.tiers, _ = open_tiers(
            config,
            runner,
            block_bytes=model.kv_bytes_per_block,
            fingerprint=model.fingerprint,
        )
        self.loop = EngineLoop(
            config=config,
            num_blocks=num_blocks,
            kv_bytes_per_block=model.kv_bytes_per_block,
            max_model_len=model.max_model_len,
            fingerprint=model.fingerprint,
            runner=runner,
            tiers=self.tiers,
            tokenizer=load_tokenizer(Path(config.model)),
            emit=self._note,
            clock=time.monotonic,
        )
        self._turns = 0

    def _note(self, event: TurnEvent) -> None:
        if isinstance(event, TurnStarted):
            self._started.append(event)

    def prefill(self, session: SessionId, ids: list[int]) -> TurnStarted:
        """Have ids computed, or what is stored of them brought back."""
        self._turns += 1
        turn = TurnId(f"resp_{self._turns}")
        self.loop.handle(SubmitTurn(turn=turn, session=session, ids=ids, generate=False))
        while self.loop.step():
            pass
        return self._started[-1]

    def park(self, ids: list[int], filler: list[int]) -> None:
        """Move the session's KV out, and have its place on the device taken by other KV."""
        self.loop.handle(ParkContext(session=_SESSION))
        other = SessionId("conv_2")
        self.loop.handle(SetContext(session=other, salt=b"other", ids=[]))
        self.prefill(other, filler)
        while self.loop.rest_s is not None:  # what is due to be written
            self.loop.step()
            time.sleep(min(0.002, self.loop.rest_s or 0.0))
        self.loop.handle(SetContext(session=other, salt=b"other", ids=[]))
        self.loop.handle(SetContext(session=_SESSION, salt=b"", ids=ids, computed=len(ids)))


def measure(
    model: NativeModel, tier: str, folder: Path, *, model_path: str, tokens: int
) -> tuple[Resumes, float]:
    """Return what coming back took per round, and the seconds that computing took once."""
    blocks = tokens // model.block_size
    size = (2 * blocks + 64) * (model.kv_bytes_per_block + 4096)
    config = EngineConfig(
        model=model_path,
        host_tier_size=size if tier == "host" else 0,
        disk_tier_size=size if tier == "disk" else 0,
        disk_tier_path=str(folder),
        num_speculative_tokens=0,
        idle_prefill=False,
    )
    engine = Engine(model, config, blocks + 1)
    ids = [(17 * index) % 40_000 for index in range(blocks * model.block_size)]
    filler = [(23 * index + 5) % 40_000 for index in range((blocks + 1) * model.block_size)]
    engine.loop.handle(SetContext(session=_SESSION, salt=b"", ids=[]))
    began = time.perf_counter()
    engine.prefill(_SESSION, ids)
    computed_s = time.perf_counter() - began
    ours_s, plain_s = [], []
    num_bytes = blocks * model.kv_bytes_per_block
    for _ in range(_ROUNDS):
        engine.park(ids, filler)
        started = engine.prefill(_SESSION, [1])
        if started.restored_tokens < len(ids) - model.block_size or started.restored_from != tier:
            raise RuntimeError(f"not restored from {tier}: {started}")
        ours_s.append(started.queue_ms / 1000)
        plain_s.append(_copy_s(num_bytes) if tier == "host" else _read_s(folder, num_bytes))
        engine.loop.handle(SetContext(session=_SESSION, salt=b"", ids=ids, computed=len(ids)))
    engine.loop.close()
    return Resumes(ours_s=ours_s, plain_s=plain_s), computed_s


def _copy_s(num_bytes: int) -> float:
    source, target = np.ones(num_bytes, dtype=np.uint8), np.ones(num_bytes, dtype=np.uint8)
    began = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began


def _read_s(folder: Path, num_bytes: int) -> float:
    pages = mmap.mmap(-1, _READ_BYTES)
    path = folder / FILE_NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        file = os.open(path, os.O_RDONLY)
    try:
        began = time.perf_counter()
        at = 0
        while at < num_bytes:
            got = os.preadv(file, [pages], at)
            if not got:
                break
            at += got
        return (time.perf_counter() - began) * num_bytes / max(at, 1)
    finally:
        os.close(file)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1024, 4096])
    arguments = parser.parse_args()
    config = EngineConfig(model=str(arguments.model))
    model = prepare_native_model(read_spec(arguments.model), config)
    for tokens in arguments.tokens:
        num_bytes = tokens // model.block_size * model.kv_bytes_per_block
        print(f"{tokens} tokens, {num_bytes / 1e6:.0f} MB of KV, {_ROUNDS} rounds")
        for tier in ("host", "disk"):
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
                resumes, computed_s = measure(
                    model, tier, Path(folder), model_path=str(arguments.model), tokens=tokens
                )
            print(resumes.line(tier, tokens, num_bytes))
        ratio = computed_s / statistics.median(resumes.ours_s)
        print(f"{'computed':>9}: {1e6 * computed_s / tokens:8.2f} ms per 1k tokens, {ratio:.0f} x")


if __name__ == "__main__":
    main()
