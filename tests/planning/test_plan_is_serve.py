"""`sessiond plan` beside a server that starts on a fake GPU of the same size."""

import json

import pytest
from typer.testing import CliRunner

from engine import bootstrap
from engine.bootstrap import build_engine
from engine.config import EngineConfig
from engine.device.limits import DeviceMemoryState
from engine.planning.device_sizes import Placing, size_up
from engine.planning.shape_reader import read_planned_model
from sessiond.__main__ import build_cli
from tests.fakes.fake_device import FakeDevice
from tests.planning.test_memory_plan import SEVEN_B

GB = 10**9
CARDS = (24, 48, 80, 141)
GROUPED = SEVEN_B | {"num_key_value_heads": 8}


class Tokenizer:
    ordinary_end = 0


class OnCard:
    """A model on a GPU, whose sizes are those of its config."""

    device = "cuda"

    def __init__(self, spec, sizes):
        self.spec = spec
        self.weights_bytes = sizes.weights_bytes
        self.kv_bytes_per_block = sizes.kv_bytes_per_block
        self.measure_activation_peak = lambda *_: sizes.activation_bytes

    def measure_graphs(self):
        return 0

    def runner(self, num_blocks):
        raise Started(num_blocks)


class Started(Exception):  # noqa: N818 -- ends the start
    """The pool was given so many blocks."""


@pytest.fixture
def served_blocks(monkeypatch):
    """Start a server on a GPU that is empty but for the weights; return the pool's blocks."""

    def start(folder, total, **settings):  # total: bytes
        config = EngineConfig(model=str(folder), device="cuda", **settings)
        sizes = size_up(read_planned_model(folder), config, Placing(device="cuda"))
        free = total - sizes.weights_bytes
        device = FakeDevice(
            facts=DeviceMemoryState(free=free, total=total, reserved=sizes.weights_bytes)
        )
        device.index = 0
        monkeypatch.setattr(bootstrap, "CudaDevice", lambda: device)
        monkeypatch.setattr(bootstrap, "resolve_model", lambda *_: folder)
        monkeypatch.setattr(bootstrap, "prepare", lambda spec, _: OnCard(spec, sizes))
        monkeypatch.setattr(bootstrap, "load_tokenizer", lambda _: Tokenizer())
        with pytest.raises(Started) as started:
            build_engine(config, lambda _event: None)
        return started.value.args[0]

    return start


@pytest.fixture
def write(tmp_path):
    def write(values):
        values = {"architectures": ["LlamaForCausalLM"]} | values
        (tmp_path / "config.json").write_text(json.dumps(values))
        return tmp_path

    return write


def planned(folder, gigabytes, *words):
    words = ("--device", "cuda", "--memory", f"{gigabytes}GB", "--json", *words)
    result = CliRunner().invoke(build_cli(), ["plan", "--model", str(folder), *words])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("config", [SEVEN_B, GROUPED], ids=["full", "grouped"])
@pytest.mark.parametrize("card", CARDS)
def test_r03_m06_a_plan_has_the_blocks_of_a_server(write, served_blocks, card, config):
    folder = write(config)
    blocks = served_blocks(folder, card * GB)
    assert abs(planned(folder, card)["total_blocks"] - blocks) <= 1
    given = served_blocks(folder, card * GB, gpu_memory_utilization=0.8)
    assert given < blocks
    found = planned(folder, card, "--gpu-memory-utilization", "0.8")["total_blocks"]
    assert abs(found - given) <= 1


def test_r03_m06_eighty_gigabytes_hold_6971_blocks(write):
    """0.9 of 80 GB, less weights and activations, in blocks of 8 MiB less the spare one."""
    found = planned(write(SEVEN_B), 80)
    assert abs(found["total_blocks"] - 6971) <= 1
    assert (found["gpu_memory_utilization"], found["usable_bytes"]) == (0.9, 72 * GB)


def test_r03_m06_memory_that_others_take_is_not_shared(write, served_blocks):
    folder = write(SEVEN_B)
    found = planned(folder, 80, "--overhead", "30GB")["total_blocks"]
    assert abs(found - served_blocks(folder, 50 * GB)) <= 1
