"""The engine in this process, as a server has it: its loop in a thread, its model at hand."""

import threading

import msgspec

from engine.config import EngineConfig
from engine.ipc.in_process import InProcessEngine
from tests.fakes.fake_model import Draw, FakeModel
from tests.harness.loop import INFO, fake_loop


class StepGate:
    """Lets the model make as many steps as it was opened for."""

    def __init__(self, steps):
        self._steps = threading.Semaphore(steps)

    def wait(self, timeout):
        return self._steps.acquire(timeout=timeout)

    def open(self, steps=10_000):
        self._steps.release(steps)


class Rig:
    """An engine of `blocks` blocks with its model, and its `loop` once it has started.

    `tiers`: made of the model's blocks; None: there are none. `info`: what it says of itself
    otherwise. `settings`: of `EngineConfig`.
    """

    def __init__(
        self,
        blocks=256,
        *,
        draw=None,
        info=INFO,
        max_model_len=None,
        tiers=None,
        **settings,
    ):
        self.config = EngineConfig(**{"model": "fake", "max_num_batched_tokens": 64, **settings})
        self.info = msgspec.structs.replace(
            info, total_blocks=blocks, max_model_len=max_model_len or info.max_model_len
        )
        self.model = FakeModel(num_blocks=blocks, block_size=16, draw=draw or Draw(stop_every=9))
        self.engine = InProcessEngine(self._start)
        self.loop = None
        self._tiers = tiers

    def _start(self, emit):
        tiers = self._tiers(self.model) if self._tiers else None
        self.loop, info = fake_loop(self.model, emit, self.config, self.info, tiers)
        # a fake computes a block in no time: beside a busy disk none would pay to be brought back
        if tiers:
            self.loop.memory.kv_transfer._recompute_s = lambda: 1.0  # noqa: SLF001 -- it is measured
        return self.loop, info
