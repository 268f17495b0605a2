"""Decode by flash-attn in a captured graph is decode by flash-attn."""

import dataclasses

import pytest
import torch

from engine.model.batch import build_batch
from engine.model.graph_buckets import Bucket
from engine.model.graphs import DecodeGraphs
from tests.fakes.fake_device import FakeDevice
from tests.laws.law_model import law_spec
from tests.model.flash_models import flash_model
from tests.model.support import draw, prefill_logits, random_ids, step

WINDOWED = dataclasses.replace(law_spec(), sliding_window=11, window_layers=(False, True))
BLOCKS = 24


class Decode:
    """Sequences in blocks of their own, and graphs of four rows over the same store."""

    def __init__(self, version, size, longest=4):
        self.size = size
        self.model, self.calls = flash_model(version, size, WINDOWED)
        self.runner = self.model.runner(BLOCKS)
        self.graphs = DecodeGraphs(
            self.model.llama,
            self.runner.store,
            FakeDevice(eager_compute=True),
            buckets=[Bucket(rows=4, pages=16, longest=longest)],
            max_position=200,
        )
        assert self.graphs.capture() == 1

    def steps(self, lengths):
        steps = []
        for number, length in enumerate(lengths):
            ids = random_ids(length, seed=length)
            blocks = list(range(6 * number, 6 * number + 6))
            if length > 1:
                prefill_logits(self.runner, ids[:-1], blocks)
            steps.append(step(ids, length - 1, blocks, block_size=self.size, sample=draw()))
        return steps

    def run(self, steps):
        with torch.inference_mode():
            return self.graphs.run(build_batch(steps, self.runner.store))


@pytest.mark.parametrize(("version", "size"), [("2", 256), ("3", 16), ("4 on Hopper", 16)])
def test_a_graph_answers_as_a_step_does(version, size):
    decode = Decode(version, size)
    for lengths in ([17], [40, 1, 16], [3, 50, 33, 20], [2, 2]):
        steps = decode.steps(lengths)
        captured = decode.run(steps)
        assert captured.isfinite().all()
        torch.testing.assert_close(captured, decode.runner.logits(steps), atol=1e-9, rtol=0)


def test_rows_that_a_step_has_not_are_finite_whatever_block_0_holds():
    decode = Decode("3", 16)
    for layer in range(WINDOWED.num_layers):
        keys, _ = decode.runner.store.layer(layer)
        keys[0] = torch.nan
    _, steps = decode.steps([5, 20])
    decode.run([steps])
    (graph,) = decode.graphs._captured.values()  # noqa: SLF001 -- what a graph has computed
    assert graph.graph.output.isfinite().all()


def test_what_a_graph_has_no_room_for_is_left_to_a_step():
    decode = Decode("3", 16, longest=2)
    long, other = decode.steps([40, 20])
    assert decode.run([long]) is None
    assert decode.run([other]) is not None
    two = step(random_ids(20, seed=20), 18, range(6, 12), sample=draw(), block_size=16)
    drafted = dataclasses.replace(two, sample=dataclasses.replace(two.sample, drafts=1))
    assert decode.run([drafted]) is None, "two rows of one sequence"
