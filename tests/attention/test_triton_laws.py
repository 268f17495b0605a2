"""The runner on our kernels: where KV lies changes no token, whatever the chunks and batches are.

The dense side is the torch backend. Replies are short, for the interpreter is slow; all of the
engine's laws are in test_triton_soak.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from engine.device.cpu import CpuDevice
from engine.device.cuda import CudaDevice
from engine.ipc.messages import Edit
from engine.model.attention.triton.backend import TritonAttention
from engine.model.batch import build_batch
from engine.model.graph_buckets import Bucket
from engine.model.graphs import DecodeGraphs
from engine.model.llama import Llama
from engine.model.runner import LoadedModel, TorchRunner
from tests.attention.paged import DEVICE, arithmetic_of
from tests.harness.loop import Engine
from tests.laws.backend import reply_alone
from tests.laws.law_model import law_spec, random_weights
from tests.laws.shifted import ShiftedContext
from tests.model.support import GREEDY, draw, prefill_logits, random_ids, step, tiny_model

REPLY = 4  # tokens
CLOSE = [1, 2]
STOP = 7


def triton_runner(num_blocks: int, block_size: int = 16) -> TorchRunner:
    """The law model's weights in float32, on our kernels."""
    spec = law_spec()
    arithmetic = arithmetic_of(spec)
    weights = random_weights(spec, 0, torch.float32)
    model = LoadedModel(
        llama=Llama(spec, weights, TritonAttention(spec, arithmetic), arithmetic),
        kv_dtype=torch.float32,
        block_size=block_size,
        max_model_len=spec.max_position,
        fingerprint="triton",
    )
    return model.runner(num_blocks)


@contextmanager
def running(**settings: object) -> Iterator[Engine]:
    engine = Engine(runner=triton_runner, idle_prefill=False, **settings)
    yield engine
    engine.check()


def ask(engine: Engine, session: str, ids: Sequence[int]) -> list[int]:
    turn = engine.submit(session, ids, stop_ids=[STOP], close_ids=CLOSE, max_output_tokens=REPLY)
    engine.run()
    return engine.kept(turn)


def dense(ids: Sequence[int]) -> list[int]:
    reply = reply_alone(
        tiny_model().runner(40),
        ids,
        sampling=GREEDY,
        max_output_tokens=REPLY,
        stop_ids=[STOP],
    )
    return [*(reply[:-1] if reply[-1] == STOP else reply), *CLOSE]


def test_paged_is_dense():
    with running() as engine:
        engine.open("a")
        ids: list[int] = []
        for number, length in enumerate([1, 15, 33]):
            prompt = random_ids(length, seed=number)
            ids += prompt
            kept = ask(engine, "a", prompt)
            assert kept == dense(ids), f"turn {number}"
            ids += kept


def test_forked_is_copied():
    with running() as engine:
        engine.open("a")
        ids = random_ids(40)
        ids += ask(engine, "a", ids)
        more = random_ids(5, seed=9)
        for length in (1, 32, 39):
            engine.fork(f"f{length}", "a", length)
            assert ask(engine, f"f{length}", more) == dense(ids[:length] + more), length
        assert ask(engine, "a", more) == dense(ids + more)


def test_shifted_is_the_kv_there_was_at_its_new_place():
    right = ShiftedContext(tiny_model().runner(40), 16)
    with running() as engine:
        engine.open("a")
        for number, length in enumerate([50, 6]):
            prompt = random_ids(length, seed=number)
            kept = ask(engine, "a", prompt)
            assert kept == right.reply(prompt, GREEDY, STOP, REPLY, CLOSE)
            edit = Edit(at=len(right.ids), dropped=((3, 5), (20, 41)))
            engine.edit("a", edit)
            right.edit(edit)


@pytest.mark.parametrize(("chunk", "block_size"), [(7, 16), (40, 3), (40, 16)])
def test_logits_are_those_of_the_torch_backend(chunk, block_size):
    ids = random_ids(40)
    blocks = list(range(14))
    ours = prefill_logits(triton_runner(14, block_size), ids, blocks, chunk=chunk)
    theirs = prefill_logits(tiny_model(block_size=block_size).runner(14), ids, blocks)
    torch.testing.assert_close(ours.cpu(), theirs, atol=2e-4, rtol=0)


def test_decode_in_a_graph_is_decode_step_by_step():
    """On a CPU what was captured is called again. Linear layers of other sizes round elsewhere."""
    prompts = [random_ids(length, seed=length) for length in (5, 33, 20)]
    places = [[0], [1, 2, 3], [4, 5]]
    runner, eager = triton_runner(6), triton_runner(6)
    for ids, blocks in zip(prompts, places, strict=True):
        for one in (runner, eager):
            one.execute([step(ids, 0, blocks)])
    device = CpuDevice() if DEVICE.type == "cpu" else CudaDevice()
    bucket = Bucket(rows=4, pages=12, longest=8)
    graphs = DecodeGraphs(runner._llama, runner.store, device, buckets=[bucket], max_position=100)  # noqa: SLF001 -- its own
    with torch.inference_mode():
        assert graphs.capture() == 1
        for members in ([0, 1, 2], [1]):
            for member in members:
                prompts[member] = [*prompts[member], 9]
            steps = [
                step(prompts[member], len(prompts[member]) - 1, places[member], sample=draw())
                for member in members
            ]
            logits = graphs.run(build_batch(steps, runner.store))
            assert logits is not None
            torch.testing.assert_close(logits, eager.logits(steps), atol=2e-5, rtol=0)
