"""The real engine loop behind the service, on a model whose replies tell of any wrong block."""

import threading
import time

import msgspec

from engine.config import EngineConfig
from engine.core.loop import EngineLoop
from engine.ipc.in_process import InProcessEngine
from tests.fakes.fake_model import Draw, FakeModel, FakeText, expected_reply
from tests.ipc.loops import INFO
from tests.sessions.world import ask

DRAW = Draw(stop_every=9)


class StepGate:
    """Lets the model make as many steps as it was opened for."""

    def __init__(self, steps):
        self._steps = threading.Semaphore(steps)

    def wait(self, timeout):
        return self._steps.acquire(timeout=timeout)

    def open(self, steps=10_000):
        self._steps.release(steps)


class Rig:
    """An engine of `blocks` blocks with its model at hand."""

    def __init__(self, blocks=256, *, max_model_len=INFO.max_model_len, **config):
        self.config = EngineConfig(
            model="fake", **{"max_num_batched_tokens": 64, "num_speculative_tokens": 0, **config}
        )
        self.info = msgspec.structs.replace(
            INFO, model="fake", total_blocks=blocks, max_model_len=max_model_len
        )
        self.model = FakeModel(num_blocks=blocks, block_size=16, draw=DRAW)
        self.engine = InProcessEngine(self.loop)

    def loop(self, emit):
        loop = EngineLoop(
            config=self.config,
            num_blocks=self.info.total_blocks,
            kv_bytes_per_block=256,
            max_model_len=self.info.max_model_len,
            fingerprint=self.info.fingerprint,
            runner=self.model,
            tokenizer=FakeText(),
            emit=emit,
            clock=time.monotonic,
        )
        return loop, self.info


def greedy(*texts, **fields):
    return ask(*texts, **{"temperature": 0.0, "max_output_tokens": 24, **fields})


def reply_after(ids, tokens=24):
    reply = expected_reply(ids, draw=DRAW, max_output_tokens=tokens)
    return bytes(token for token in reply if token != 256).decode()
