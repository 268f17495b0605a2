"""A loaded model: what it says of itself, what it measures, how its types are chosen."""

import shutil

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.files.spec_reader import read_spec
from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageMove
from engine.kv.step import NOT_FINITE
from engine.model.resolve import resolve
from engine.model.runner import TorchRunner, prepare_model
from tests.fakes.fake_device import FakeDevice
from tests.laws.law_model import law_model, law_runner
from tests.model.gguf_files import Kind, weights, write
from tests.model.support import draw, load, prefill_logits, random_ids, step, tiny_model

IDS = random_ids(70)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("model") / "tiny.gguf", weights(), Kind.Q8_0)


def test_paged_equals_dense_and_batch_equals_alone_within_tolerance():
    runner = tiny_model().runner(20)
    alone = prefill_logits(runner, IDS, range(5))
    for chunk in (1, 9, 16):
        other = prefill_logits(runner, IDS, [19, 3, 11, 8, 14], chunk)
        torch.testing.assert_close(other, alone, atol=1e-3, rtol=0)
    batch = [
        step(IDS, 69, [19, 3, 11, 8, 14], sample=draw()),
        step(IDS[:30], 10, [19, 3], sample=draw()),
        step(IDS[:17], 16, [19, 3], sample=draw()),
    ]
    torch.testing.assert_close(runner.logits(batch), alone[[69, 29, 16]], atol=1e-3, rtol=0)


def test_only_sampling_sequences_get_tokens_in_their_order():
    runner = tiny_model().runner(10)
    logits = prefill_logits(runner, IDS, range(5))
    batch = [
        step(IDS[:40], 0, range(5)),
        step(IDS[:20], 5, range(5), sample=draw()),
        step(IDS[:10], 9, range(5)),
        step(IDS, 60, range(5), sample=draw(3, Sampling(temperature=1.0, top_k=1))),
    ]
    assert runner.execute(batch) == [int(logits[19].argmax()), int(logits[69].argmax())]
    assert runner.execute(batch[:1]) == []


@pytest.mark.parametrize("block_size", [1, 7, 32])
def test_any_block_size(block_size):
    runner = tiny_model(block_size=block_size).runner(70)
    expected = prefill_logits(tiny_model().runner(5), IDS, range(5))
    for chunk in (70, 13):
        got = prefill_logits(runner, IDS, range(70), chunk)
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=0)


def test_narrow_kv_and_narrow_weights_stay_near_float32():
    expected = prefill_logits(tiny_model().runner(5), IDS, range(5)).log_softmax(-1)
    narrow_kv = prefill_logits(tiny_model(kv_dtype=torch.bfloat16).runner(5), IDS, range(5), 9)
    narrow = prefill_logits(tiny_model(torch.bfloat16).runner(5), IDS, range(5), 9)
    for logits, bound in ((narrow_kv, 0.01), (narrow, 0.1)):
        other = logits.float().log_softmax(-1)
        divergence = (expected.exp() * (expected - other)).sum(-1)
        assert 0 < divergence.mean() < bound


def test_weights_that_are_no_numbers_are_told_in_place_of_the_token():
    model = tiny_model()
    model.llama.weights.norm[0] = torch.nan
    drawn = model.runner(2).execute([step(IDS[:5], 0, range(2), sample=draw())])
    assert drawn == [NOT_FINITE]


def test_loaded_model_says_what_it_is(path):
    model = load(path, block_size=8, kv_cache_dtype="bfloat16", max_model_len=128)
    assert (model.device, model.dtype, model.kv_dtype) == ("cpu", "float32", "bfloat16")
    assert (model.attention, model.block_size, model.max_model_len) == ("torch", 8, 128)
    assert model.kv_bytes_per_block == 2 * 2 * 8 * 2 * 64 * 2
    parameters = sum(tensor.size for tensor in weights().values())
    assert model.weights_bytes == parameters * 4
    assert load(path, dtype="bfloat16").weights_bytes == parameters * 2
    assert load(path, dtype="bfloat16").kv_dtype == "bfloat16"
    assert load(path).max_model_len == 512


def test_fingerprint_follows_weights_and_types_not_the_place(path, tmp_path):
    first = load(path).fingerprint
    copy = tmp_path / "renamed.gguf"
    shutil.copy(path, copy)
    assert load(copy).fingerprint == first
    assert load(path, kv_cache_dtype="bfloat16").fingerprint != first
    assert load(path, dtype="bfloat16").fingerprint != first
    write(copy, weights(seed=1), Kind.Q8_0)
    assert load(copy).fingerprint != first


def test_activation_peak_grows_with_the_step_and_not_with_the_model(path):
    model = load(path)
    small = model.measure_activation_peak(32, 2)
    large = model.measure_activation_peak(256, 2)
    # the mask and the MLP of 256 tokens
    assert large > small > 32 * 512 * 4
    assert 256 * 2 * 512 * 4 < large < 2e7
    many = model.measure_activation_peak(32, 32)
    assert many > 32 * 300 * 4 + small


def test_longer_context_than_the_model_has_is_refused(path):
    with pytest.raises(ConfigError, match=r"max_model_len must be 0 .* to 512 tokens.*got 513\)"):
        load(path, max_model_len=513)


def test_device_that_is_not_there_is_refused(path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device must be cpu or auto.*got 'cuda'\)"):
        prepare_model(read_spec(path), EngineConfig(model="tiny", device="cuda"))
    assert resolve(read_spec(path), EngineConfig(model="tiny")).device.type == "cpu"


def test_cuda_is_taken_with_bfloat16_where_it_is(path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    resolved = resolve(read_spec(path), EngineConfig(model="tiny"))
    assert (resolved.device.type, resolved.dtype) == ("cuda", torch.bfloat16)
    assert resolved.kv_dtype == torch.bfloat16
    chosen = resolve(read_spec(path), EngineConfig(model="tiny", device="cpu", dtype="float16"))
    assert (chosen.device.type, chosen.dtype) == ("cpu", torch.float16)


def test_a_pool_whose_device_has_streams_is_handed_out_as_rows_of_bytes():
    store = law_runner(3).store
    device = FakeDevice()
    streamed = TorchRunner(law_model().llama, store, device).streamed
    assert streamed.device is device
    streamed.rows[1] = 7
    into = np.zeros(store.bytes_per_block, dtype=np.uint8)
    store.read_block(1, into)
    assert (into == 7).all()
    assert TorchRunner(law_model().llama, store).streamed is None


def test_many_pages_move_as_each_one_alone():
    """In place, page by page: what a page overwrites was read, and no later one wants it."""
    model = law_model(position_form="absolute")
    ids, dropped, size = random_ids(700), 21, 16
    moves = [
        PageMove(
            target=BlockId(start // size),
            sources=[
                (BlockId(place // size), place % size)
                for place in range(start + dropped, min(start + size + dropped, len(ids)))
            ],
            shifts=[-dropped] * min(size, len(ids) - dropped - start),
        )
        for start in range(0, len(ids) - dropped, size)
    ]
    stores = []
    for chunks in ([moves], [[move] for move in moves]):
        runner = model.runner(44)
        prefill_logits(runner, ids, range(44))
        for chunk in chunks:
            runner.move_pages(chunk)
        stores.append(runner.store)
    for layer in range(model.spec.num_layers):
        for one, other in zip(stores[0].layer(layer), stores[1].layer(layer), strict=True):
            assert torch.equal(one[:43], other[:43])
    keys, _ = stores[0].layer(0)
    assert not torch.equal(keys[0, :5], keys[1, 5:10])


def test_a_step_that_draws_nothing_has_been_carried_out_too():
    device, done = FakeDevice(), []
    model = law_model()
    runner = TorchRunner(model.llama, model.runner(4).store, device)
    device.compute.run(lambda: done.append("what the step ordered"))
    assert runner.execute([step(IDS[:20], 0, range(2))]) == []
    assert done


def test_fewer_pages_move_at_a_time_where_there_is_no_memory_for_more(monkeypatch):
    model = law_model(position_form="absolute")
    size, moves = model.block_size, []
    for number in range(4):
        sources = [(BlockId(number + 1), slot) for slot in range(size)]
        moves.append(
            PageMove(target=BlockId(number), sources=sources, shifts=[-size] * len(sources))
        )
    usual, scarce = model.runner(5), model.runner(5)
    for runner in (usual, scarce):
        prefill_logits(runner, random_ids(5 * size), range(5))
    usual.move_pages(moves)
    take, asked = scarce.store.take, []

    def short(places):
        asked.append(len(places) // size)
        if len(places) > size:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return take(places)

    monkeypatch.setattr(scarce.store, "take", short)
    scarce.move_pages(moves)
    assert asked == [4, 2, 1, 1, 1, 1]
    assert torch.equal(scarce.store.bytes, usual.store.bytes)
    monkeypatch.setattr(scarce.store, "take", lambda _: torch.empty(2**60, dtype=torch.uint8))
    with pytest.raises(MemoryError):
        scarce.move_pages(moves)
