"""Decode as graphs: captured once, fed before each replay, equal to what is not captured."""

import pytest
import torch

from engine.errors import ConfigError
from engine.kv.tensors import KvStore
from engine.model.graph_buckets import make_buckets
from engine.model.graphs import DecodeGraphs, graph_bytes
from engine.model.runner import TorchRunner
from tests.fakes.fake_device import FakeDevice, FakeStream
from tests.laws.law_model import law_model
from tests.model.capturable import capturable_llama
from tests.model.support import draw, random_ids, step

BLOCKS = 40


class Stack:
    """A runner with graphs over a fake device."""

    def __init__(self, sizes=(1, 2, 4), max_model_len=512, device=None):
        self.llama = capturable_llama()
        self.backend = self.llama.attention
        self.store = KvStore(
            self.llama.spec,
            num_blocks=BLOCKS,
            block_size=16,
            dtype=torch.float64,
            device=torch.device("cpu"),
        )
        self.device = device or FakeDevice(eager_compute=True)
        self.graphs = DecodeGraphs(
            self.llama,
            self.store,
            self.device,
            buckets=make_buckets(sizes, max_model_len=max_model_len, block_size=16),
            max_position=max_model_len - 1,
        )
        with torch.inference_mode():
            self.captured = self.graphs.capture()
        self.runner = TorchRunner(self.llama, self.store, self.device, self.graphs)

    @property
    def replays(self):
        return sum(graph.replays for graph in self.device.graphs)


@pytest.fixture
def stack():
    return Stack()


@pytest.fixture
def eager():
    return law_model().runner(BLOCKS)


def sequences(count, length=20):
    return [(random_ids(length + 7 * n, seed=n), range(8 * n, 8 * n + 8)) for n in range(count)]


def decode(both, count, rounds):
    """Prefill, then decode in step; returns what each runner drew in each round."""
    ids = [list(one) for one, _ in sequences(count)]
    blocks = [list(places) for _, places in sequences(count)]
    drawn = [[] for _ in both]
    starts = [0] * count
    for number in range(rounds):
        steps = [step(ids[n], starts[n], blocks[n], sample=draw(number)) for n in range(count)]
        replies = [runner.execute(steps) for runner in both]
        for mine, reply in zip(drawn, replies, strict=True):
            mine.append(reply)
        for n, token in enumerate(replies[-1]):
            starts[n] = len(ids[n])
            ids[n].append(token)
    return drawn


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_replay_equals_what_is_not_captured_bit_for_bit(stack, eager, count):
    mine, expected = decode([stack.runner, eager], count, rounds=6)
    assert mine == expected
    assert stack.replays == 5, "all but the prefill"
    assert torch.equal(stack.store.bytes, eager.store.bytes), "and so is the KV that it wrote"


def test_each_bucket_is_captured_once_at_start_and_the_narrowest_is_replayed(stack):
    assert stack.captured == len(stack.device.graphs) == 3
    decode([stack.runner], 3, rounds=4)
    assert len(stack.device.graphs) == 3
    replays = {fixed.tokens: fixed.fills for fixed in stack.backend.fixed}
    assert replays == {4: 3, 2: 0, 1: 0}


def test_inputs_are_copied_before_the_replay_in_the_stream_of_the_model(stack):
    compute = stack.device.compute
    assert isinstance(compute, FakeStream)
    before = compute.copies
    decode([stack.runner], 2, rounds=3)
    assert compute.copies == before + 2
    assert len(stack.device.streams) == 1


def test_rows_of_padding_write_to_nobodys_block(stack):
    ids, blocks = sequences(1)[0]
    stack = Stack(sizes=(4,))
    stack.store.bytes[:] = 0
    stack.runner.execute([step(ids, 0, blocks)])
    before = stack.store.bytes.clone()
    stack.runner.execute([step([*ids, 5], len(ids), blocks, sample=draw())])
    assert stack.replays == 1
    changed = (stack.store.bytes != before).any(1).nonzero().flatten().tolist()
    assert changed == [blocks[len(ids) // 16]]
    assert stack.store._pool[BLOCKS].any(), "there padding was written"  # noqa: SLF001 -- what a graph has computed


@pytest.mark.parametrize(
    "case", ["prefill", "last chunk that draws", "more rows", "longer", "refused", "no draw"]
)
def test_other_steps_are_computed_as_ever(case, eager):
    stack = Stack(sizes=(2,), max_model_len=64)
    ids = random_ids(100)
    steps = {
        "prefill": [step(ids[:20], 0, range(2))],
        "last chunk that draws": [step(ids[:20], 18, range(2), sample=draw())],
        "more rows": [
            step(ids[: 20 + n], 19 + n, range(8 * n, 8 * n + 8), sample=draw()) for n in range(3)
        ],
        "longer": [step(ids, 99, range(7), sample=draw())],
        "refused": [step(ids[:20], 19, range(2), sample=draw())],
        "no draw": [step(ids[:20], 19, range(2))],
    }[case]
    stack.backend.refuses = case == "refused"
    assert stack.runner.execute(steps) == eager.execute(steps)
    assert stack.replays == 0


def test_drafts_are_checked_in_a_graph(stack, eager):
    ids, blocks = random_ids(24), range(2)
    for runner in (stack.runner, eager):
        runner.execute([step(ids[:20], 0, blocks)])
    checked = [step(ids, 20, blocks, sample=draw_with(3))]
    assert stack.runner.execute(checked) == eager.execute(checked)
    assert stack.replays == 1


def draw_with(drafts):
    one = draw()
    return type(one)(sampling=one.sampling, output_index=0, drafts=drafts)


def test_what_is_staged_is_let_be_until_it_has_been_copied():
    """The fake's model computes late here, so only the order of copies is looked at."""
    stack = Stack(sizes=(1,))
    device = FakeDevice(seed=1)
    lazy = DecodeGraphs(
        stack.llama,
        stack.store,
        device,
        buckets=make_buckets((1,), max_model_len=64, block_size=16),
        max_position=63,
    )
    with torch.inference_mode():
        lazy.capture()
    runner = TorchRunner(stack.llama, stack.store, device, lazy)
    seen = []
    ids = random_ids(30)
    for length in (20, 21, 22):
        runner.logits([step(ids[:length], length - 1, range(2), sample=draw())])
        (captured,) = lazy._captured.values()  # noqa: SLF001 -- what a graph has computed
        device.compute.run(lambda table=captured.inputs.table: seen.append(table[1].tolist()))
    with torch.inference_mode():
        device.run_all()
    assert seen == [[19], [20], [21]]


def test_a_captured_step_can_be_computed_again_without_the_host(stack, eager):
    ids, blocks = random_ids(24), range(2)
    for runner in (stack.runner, eager):
        runner.execute([step(ids[:23], 0, blocks)])
    steps = [step(ids, 23, blocks, sample=draw())]
    compute = stack.runner.captured(steps)
    copies = stack.device.compute.copies
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(compute(), eager.logits(steps))
    assert stack.device.compute.copies == copies
    assert stack.runner.captured([step(ids, 20, blocks, sample=draw())]) is None
    assert eager.captured(steps) is None


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_graphs_that_find_no_memory_are_left_out_and_their_steps_run_as_ever(eager, error):
    class Scarce(FakeDevice):
        def capture(self, work):
            if len(self.graphs) == 2:
                raise error("nothing left")
            return super().capture(work)

    stack = Stack(device=Scarce(eager_compute=True))
    assert stack.captured == 2
    mine, expected = decode([stack.runner, eager], 1, rounds=3)
    assert mine == expected
    assert stack.replays == 2, "a wider one serves"


def test_where_a_step_cant_be_captured_it_is_said_what_would_work():
    class Refusing(FakeDevice):
        def capture(self, work):
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(
        ConfigError, match=r"cuda_graphs must be off, .*not permitted.*got 'auto'\)"
    ):
        Stack(device=Refusing(eager_compute=True))


def test_what_graphs_take_is_what_the_driver_has_less(stack):
    class Shrinking(FakeDevice):
        def memory(self):
            facts = super().memory()
            left = 1000 - 10 * len(self.graphs)
            return type(facts)(free=left, total=1000, reserved=0)

    device = Shrinking(eager_compute=True)
    graphs = DecodeGraphs(
        stack.llama,
        stack.store,
        device,
        buckets=make_buckets((1, 2), max_model_len=64, block_size=16),
        max_position=63,
    )
    with torch.inference_mode():
        assert graph_bytes(graphs, device) == 20


def test_a_backend_whose_shapes_change_is_refused(stack):
    with pytest.raises(TypeError, match="law attention has no step with fixed tensors"):
        DecodeGraphs(law_model().llama, stack.store, stack.device, buckets=(), max_position=1)
