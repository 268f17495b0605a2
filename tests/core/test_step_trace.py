"""One decode step can be read in one sitting: few files, few calls, all of them short."""

import ast
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable

import pytest

from engine.config import EngineConfig
from engine.core.loop import EngineLoop
from engine.files.spec_reader import read_spec
from engine.ids import SessionId, TurnId
from engine.ipc.command_reader import OutputBuffer, drive
from engine.ipc.messages import Sampling, SetContext, SubmitTurn
from engine.model.native import prepare_native_model
from engine.worker_process import SocketTransport
from tests.fakes.fake_model import FakeText
from tests.harness.trace import ROOT, Trace, traced
from tests.kernels.tiny_model import write_tiny_model

MAX_FILES, MAX_CALLS = 15, 75
MAX_DRIVEN_FILES = 18  # the step, and the three files that carry its output to the gateway
MEDIAN_LINES, P90_LINES = 8, 25
WARM_UP_STEPS, STEPS = 40, 32


@pytest.fixture
def make_loop(tmp_path) -> Callable[..., EngineLoop]:
    """One turn that decodes on the native path: no drafts, nothing due."""

    def make(emit) -> EngineLoop:
        folder = write_tiny_model(tmp_path / "tiny")
        config = EngineConfig(model=str(folder), num_speculative_tokens=0)
        model = prepare_native_model(read_spec(folder), config)
        loop = EngineLoop(
            config=config,
            num_blocks=64,
            kv_bytes_per_block=model.kv_bytes_per_block,
            max_model_len=model.max_model_len,
            fingerprint=model.fingerprint,
            runner=model.runner(64),
            tokenizer=FakeText(),
            emit=emit,
            clock=time.monotonic,
        )
        session = SessionId("conv")
        loop.handle(SetContext(session=session, salt=b"", ids=[]))
        loop.handle(
            SubmitTurn(
                turn=TurnId("resp"),
                session=session,
                ids=list(range(20, 60)),
                sampling=Sampling(temperature=0.0),
                max_output_tokens=400,
            )
        )
        for _ in range(WARM_UP_STEPS):
            loop.step()
        return loop

    return make


def usual(traces: list[Trace]) -> Trace:
    """A step of the most frequent size: one in 16 takes a block, one in 16 fills one."""
    size, count = Counter(len(trace.calls) for trace in traces).most_common(1)[0]
    assert count > len(traces) / 2
    return next(trace for trace in traces if len(trace.calls) == size)


def test_a_step_crosses_few_files_in_few_calls(make_loop) -> None:
    loop = make_loop([].append)
    traces = []
    for _ in range(STEPS):
        with traced() as trace:
            loop.step()
        traces.append(trace)
    step = usual(traces)
    assert len(step.files) <= MAX_FILES, step
    assert len(step.calls) <= MAX_CALLS, step
    lengths = sorted(map(lines_of, {call for call in step.calls if "<" not in call[1]}))
    assert statistics.median(lengths) <= MEDIAN_LINES, lengths
    assert lengths[int(0.9 * len(lengths))] <= P90_LINES, lengths


def test_a_step_of_the_engine_process_adds_its_transport_only(make_loop) -> None:
    """`drive` runs the loop as the engine's process does: over a socket, with frames."""
    ours, theirs = socket.socketpair()
    output_buffer = OutputBuffer()
    loop = make_loop(output_buffer.put)
    output_buffer.take()
    traces: list[Trace] = []

    class Traced(SocketTransport):
        """Each `receive` ends one step's trace and begins the next; in the end it hangs up."""

        def receive(self, *, wait_s):
            theirs.recv(1 << 16, socket.MSG_DONTWAIT) if traces else None
            if len(traces) == STEPS:
                theirs.close()
            return super().receive(wait_s=wait_s)

    class Stepped:
        """The loop, whose step a trace of its own goes around: from its begin to its output."""

        def __getattr__(self, name):
            return getattr(loop, name)

        def step(self, flush):
            with traced() as trace:
                did = loop.step(flush)
                flush()
            traces.append(trace)
            return did

    with ours:
        drive(Stepped(), output_buffer, Traced(ours))
    assert len(usual(traces).files) <= MAX_DRIVEN_FILES, usual(traces)


def lines_of(call: tuple[str, str]) -> int:
    """Lines of a function, its docstring included."""
    file, qualified = call
    body: list[ast.stmt] = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for name in qualified.split("."):
        found = next(node for node in body if getattr(node, "name", None) == name)
        body = found.body
    return found.end_lineno - found.lineno + 1
