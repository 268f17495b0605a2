"""`benchmarks.gpu` without a GPU: the same code on the smallest model."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from benchmarks import gpu
from benchmarks.device import checks
from benchmarks.device.checks import Check, check_backend
from benchmarks.device.measures import Goal
from benchmarks.device.shapes import decode_bytes, matrix_parameters, prefill_operations, shape_of
from benchmarks.gpu import Result, main
from engine.config import EngineConfig
from engine.kv.offload import KvTransfer
from engine.model.runner import TorchRunner
from tests.model.flash_models import flash_model

CONFIG = EngineConfig(model="random", device="cpu", dtype="float32", cpu_threads=1)


@pytest.fixture(autouse=True)
def _restoring_pays(monkeypatch):
    """Measured times decide whether KV is brought back or computed again: not those of here."""
    monkeypatch.setattr(KvTransfer, "_pays", lambda _self: True)


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(main)
    before = torch.get_num_threads()
    flags = ["--device", "cpu", "--shape", "tiny", "--dtype", "float32", "--cpu-threads", "1"]
    yield lambda *more: CliRunner().invoke(app, [*flags, *more])
    torch.set_num_threads(before)


def test_it_checks_and_measures_all_without_a_gpu(run, tmp_path):
    path = tmp_path / "figures.json"
    ran = run("--attention-backend", "torch", "--json", str(path))
    assert ran.exit_code == 0, ran.output
    (result,) = json.loads(path.read_text())["results"]
    assert result["refused"] == ""
    assert result["faults"] == []
    assert len(result["checks"]) == 6
    assert len(result["goals"]) == 4
    assert all(row["value"] > 0 for row in result["rows"] if "Python" not in row["name"])
    names = " ".join(row["name"] for row in result["rows"])
    for what in ("decode, 64", "prefill", "back from the host", "device to host", "release"):
        assert what in names


def test_wrong_logits_fail_the_run_and_nothing_is_measured(run, monkeypatch, tmp_path):
    right = TorchRunner.logits

    def wrong(self, batch, *, every_token=False):
        # as if the last block of a text were not read
        return right(self, batch, every_token=every_token) * (1 + 0.01 * len(batch[0].entries))

    monkeypatch.setattr(TorchRunner, "logits", wrong)
    path = tmp_path / "figures.json"
    ran = run("--attention-backend", "torch", "--json", str(path))
    assert ran.exit_code == 1, ran.output
    (result,) = json.loads(path.read_text())["results"]
    assert result["rows"] == []


def test_a_backend_that_breaks_is_a_fault_and_others_are_measured_all_the_same(
    run, monkeypatch, tmp_path
):
    def broken(config, _seed):
        raise RuntimeError(f"Triton Error [CUDA]: no kernel for {config.attention_backend}")

    monkeypatch.setattr(gpu, "check_backend", broken)
    path = tmp_path / "figures.json"
    ran = run("--attention-backend", "torch", "--attention-backend", "torch", "--json", str(path))
    assert ran.exit_code == 1, ran.output
    both = json.loads(path.read_text())["results"]
    faults = ["RuntimeError: Triton Error [CUDA]: no kernel for torch"]
    assert [result["faults"] for result in both] == [faults, faults]


def test_a_backend_is_checked_in_the_types_that_it_computes_in():
    halves = ["bfloat16", "float16"]
    for name, dtypes in (("flash", halves), ("triton", ["float32", *halves])):
        asked = EngineConfig(model="random", attention_backend=name)
        assert gpu._dtypes(asked) == dtypes  # noqa: SLF001 -- a part of a long run
    assert gpu._dtypes(EngineConfig(model="random", dtype="float16")) == ["float16"]  # noqa: SLF001 -- a part of a long run


def test_an_unknown_backend_is_told_what_there_is(run):
    ran = run("--attention-backend", "abacus")
    assert ran.exit_code == 2
    assert "abacus" in ran.output
    assert "torch" in ran.output


def test_sixteen_bits_are_within_their_tolerance():
    checks = check_backend(EngineConfig(model="random", device="cpu", dtype="bfloat16"), seed=3)
    assert [check.name for check in checks if not check.passed] == []


def test_what_is_not_a_number_passes_nothing():
    nan = float("nan")
    assert not Check(name="logits", found=nan, allowed=1.0).passed
    assert not Goal(name="rate", value=nan, wanted=0.5).met
    assert not Result(backend="x", checks=[Check(name="", found=nan, allowed=1.0)]).is_sound
    assert not Result(backend="x", faults=["a leak"]).is_sound


def test_the_floors_of_a_7b_step():
    spec = shape_of("7b").spec
    assert matrix_parameters(spec) == pytest.approx(6.98e9, rel=0.01)
    # 14.2 GB of weights, and 64 x 1,024 tokens of 128 KiB
    least = decode_bytes(spec, weight_bytes=2, kv_bytes_per_token=131_072, batch=64, context=1024)
    assert least == pytest.approx(14.2e9 + 8.6e9, rel=0.01)
    # twice the weights for each token, and half of 8,192 squared scores and sums in each head
    assert prefill_operations(spec, 8192) == pytest.approx(1.143e14 + 1.76e13, rel=0.01)


@pytest.mark.parametrize("version", ["3", "4 on Hopper"])
def test_a_backend_that_reads_whole_pages_is_checked_on_values_that_it_may_meet(version):
    loaded, _ = flash_model(version, 16)
    ids = list(range(1, 71))
    logits = checks._logits(loaded, ids, (33, 1, 36), range(64))  # noqa: SLF001 -- a part of a long run
    assert logits.isfinite().all()
    whole = checks._logits(loaded, ids, (70,), range(63, -1, -1))  # noqa: SLF001 -- a part of a long run
    torch.testing.assert_close(logits, whole, atol=1e-4, rtol=0)
