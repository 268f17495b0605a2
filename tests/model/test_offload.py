"""Layers that stay in main memory: whatever streams do, the bits are those of layers that don't."""

import itertools

import msgspec
import pytest
import torch

from engine.config import EngineConfig
from engine.device.cpu import CpuDevice
from engine.errors import ConfigError
from engine.files.spec_reader import read_spec
from engine.model import runner as runner_module
from engine.model.choice import prepare
from engine.model.weights.layers import LayerWeights
from engine.model.weights.offload import OffloadedLayers, pack
from engine.planning.offload_sizes import offloaded_layers
from tests.fakes.fake_device import FakeDevice
from tests.model import gguf_files
from tests.model.gguf_files import Kind
from tests.model.support import draw, greedy_reply, load, prefill_logits, random_ids, step

LAYERS = 6
IDS = random_ids(40, vocab=300)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_files, "LAYERS", LAYERS)
    return gguf_files.write(tmp_path / "m.gguf", gguf_files.weights(), Kind.Q4_K)


def layer_of(number):
    """A layer whose tensors all hold its number; sizes differ from layer to layer."""

    def filled(*shape):
        return torch.full(shape, float(number))

    return LayerWeights(
        attention_norm=filled(3),
        qkv=filled(4 + number, 5),
        qkv_bias=None,
        qk_norm=None,
        output=filled(5, 7).to(torch.bfloat16),
        output_bias=filled(1),
        mlp_norm=filled(3),
        gate_up=filled(6, 5),
        down=filled(5, 3),
    )


def offloaded(device, away, total=LAYERS):
    layers = {number: layer_of(number) for number in range(total)}
    packed = {number: pack(layers.pop(number), device) for number in away}
    return OffloadedLayers(device, layers, packed)


def shown_by(device, layers, walks):
    """What each layer's tensors held when the compute stream came to them, walk after walk.

    A walk of `count` layers is left inside its last one, as a step that fails would.
    """
    seen = []

    def look(weights):
        held = {value for tensor in weights.tensors() for value in tensor.flatten().tolist()}
        seen.append(held)

    for count in walks:
        walk = layers.walk()
        for weights in itertools.islice(walk, count):
            # twice, with others' turns between: it must stay as it is
            device.compute.run(lambda weights=weights: look(weights))
            device.compute.run(lambda weights=weights: look(weights))
        walk.close()
    device.run_all()
    return seen


@pytest.mark.parametrize("away", [{5}, {2, 5}, {1, 3, 5}, {0, 1, 2, 3, 4}, set(range(6))], ids=str)
def test_each_layer_is_there_when_it_is_computed_and_stays_until_it_was(away):
    for seed in range(30):
        device = FakeDevice(seed=seed)
        walks = [6, 6, 3, 6, 4, 1, 6, 6]
        seen = shown_by(device, offloaded(device, away), walks)
        expected = [{float(layer)} for count in walks for layer in range(count) for _ in "12"]
        assert seen == expected, seed


def test_a_copy_may_run_beside_what_is_computed():
    """Else the streams would be for nothing: the next layer comes while this one is used."""
    device = FakeDevice()
    next(offloaded(device, set(range(6))).walk())
    computed = []
    device.compute.run(lambda: computed.append(0))
    compute, copies = device.streams
    compute.step()  # what was ordered before the copies
    compute.step()
    while copies.is_ready:
        copies.step()
    assert (copies.copies, len(copies)) == (2, 0)
    assert not computed


def test_a_step_finds_its_first_layers_there():
    device = FakeDevice()
    layers = offloaded(device, {1, 3, 5})
    for _ in layers.walk():
        pass
    copies = device.streams[1].copies
    next(layers.walk())
    list(layers.walk())
    assert device.streams[1].copies == copies + 3


def test_they_are_spread_evenly():
    assert offloaded_layers(6, 3) == {1, 3, 5}
    assert offloaded_layers(30, 4) == {6, 14, 21, 29}
    for total, count in itertools.combinations_with_replacement(range(33, 0, -1), 2):
        away = sorted(offloaded_layers(total, count))
        assert len(away) == count
        assert away[0] >= 0
        assert away[-1] == total - 1
        gaps = {later - earlier for earlier, later in itertools.pairwise(away)}
        assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("weights", ["dequantized", "native"])
@pytest.mark.parametrize("count", [3, 5, 6])
def test_logits_and_replies_are_those_of_layers_on_the_device(path, monkeypatch, weights, count):
    settings = {"attention_backend": "torch", "weights": weights}
    here = load(path, **settings)
    expected = prefill_logits(here.runner(5), IDS, range(5), 17)
    reply = greedy_reply(here.runner(5), IDS, range(5), 4)
    for seed, make in enumerate((CpuDevice, *[FakeDevice] * 3)):
        device = make() if make is CpuDevice else make(seed=seed, eager_compute=True)
        monkeypatch.setattr(runner_module, "CpuDevice", lambda device=device: device)
        away = load(path, weights_offload_layers=count, **settings)
        assert away.fingerprint == here.fingerprint
        runner = away.runner(5)
        assert torch.equal(prefill_logits(runner, IDS, range(5), 17), expected)
        assert greedy_reply(runner, IDS, range(5), 4) == reply


def test_a_step_that_failed_in_the_middle_spoils_no_later_one(path, monkeypatch):
    device = FakeDevice(seed=1, eager_compute=True)
    monkeypatch.setattr(runner_module, "CpuDevice", lambda: device)
    runner = load(path, attention_backend="torch", weights_offload_layers=4).runner(5)
    expected = load(path, attention_backend="torch").runner(5).logits([step(IDS, 0, range(5))])
    store = runner.store
    for failing in range(LAYERS):

        def write(layer, *others, failing=failing):
            if layer == failing:
                raise MemoryError
            type(store).write(store, layer, *others)

        monkeypatch.setattr(store, "write", write)
        with pytest.raises(MemoryError):
            runner.execute([step(IDS, 0, range(5), sample=draw())])
        monkeypatch.delattr(store, "write")
        assert torch.equal(runner.logits([step(IDS, 0, range(5))]), expected)


def test_what_stays_in_main_memory_is_not_counted_as_the_devices(path):
    sizes = [
        load(path, attention_backend="torch", weights_offload_layers=count).weights_bytes
        for count in (0, 3, 4, 5, 6)
    ]
    layer = sizes[1] - sizes[2]
    assert layer > 0
    # of 3 layers two buffers stay; the buffers have a little room for alignment
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[4] == pytest.approx(4 * layer, rel=0.01)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_so_many_layers_cannot_be_offloaded(path, count):
    with pytest.raises(
        ConfigError, match=r"weights_offload_layers must be .*0 \(none\), or 3 to 6 lay"
    ):
        load(path, attention_backend="torch", weights_offload_layers=count)


def test_the_native_kernels_offload_nothing(path):
    config = EngineConfig(model=str(path), device="cpu", weights_offload_layers=3)
    with pytest.raises(
        ConfigError, match=r"weights_offload_layers must be 0 on the native .*got 3\)"
    ):
        prepare(read_spec(path), config)
    torchs = msgspec.structs.replace(config, attention_backend="torch")
    assert prepare(read_spec(path), torchs).attention == "torch"


def test_main_memory_that_cannot_be_pinned_is_told(path, monkeypatch):
    class Full(CpuDevice):
        def pinned(self, num_bytes):
            raise MemoryError(f"no {num_bytes} bytes")

    monkeypatch.setattr(runner_module, "CpuDevice", Full)
    with pytest.raises(
        ConfigError, match=r"weights_offload_layers must be .* main memory \(no \d+ bytes"
    ):
        load(path, attention_backend="torch", weights_offload_layers=3)
