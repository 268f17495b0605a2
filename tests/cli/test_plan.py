"""`sessiond plan`: pages for people, JSON for scripts, a server beside it, wrong use in words."""

import json

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli
from tests.cli.test_commands import server
from tests.planning.test_memory_plan import LLAVA, SEVEN_B


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "seven"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SEVEN_B))
    return str(folder)


def plan(*words):
    return CliRunner().invoke(build_cli(), ["plan", *words])


def on_card(model, *words):
    return plan("--model", model, "--device", "cuda", "--memory", "24GB", *words)


def test_the_page_says_where_the_bytes_go_and_what_fits(model):
    result = on_card(model, "--text-tokens", "700")
    assert result.exit_code == 0, result.stderr
    for said in (
        "seven: 6.74 billion weights in float16",
        "- weights",
        "12.6 GiB",
        "15392 tokens, 512.0 KiB each",
        "sessions at once: 15 of 1024, 3 of 4096",
        "longest context: 15376 tokens",
        "--gpu-memory-utilization 0.91 leaves 2.0 GiB for libraries and fragmentation: 991 blocks",
        "one conversation of 700 tokens: 350 MiB of KV",
    ):
        assert said in " ".join(result.stdout.split()), result.stdout


def test_json_has_the_same_for_scripts(model):
    found = json.loads(on_card(model, "--json", "--session-tokens", "8000").stdout)
    assert found["total_tokens"] == found["total_blocks"] * 16 == 15392
    assert found["kv_bytes_per_token"] == 524_288
    assert found["sessions"] == {"8000": 1}
    assert (found["refusal"], found["max_model_len"]) == (None, 15376)


def test_an_adapter_and_images_have_their_lines(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAVA))
    result = on_card(str(tmp_path), "--images", "4", "--lora-slots", "2", "--devices", "2")
    for said in ("vision encoder", "images", "LoRA slots", "one of 2 devices"):
        assert said in result.stdout


@pytest.mark.parametrize("memory", ["8GB", "0"])
def test_what_does_not_fit_is_a_failure(model, memory):
    result = plan("--model", model, "--device", "cuda", "--memory", memory)
    assert result.exit_code == 1
    assert "Nothing fits" in result.stdout


def test_free_memory_of_this_machine_is_the_default(model):
    result = plan("--model", model, "--json", "--kv-cache-memory", "16MiB", "--max-model-len", "16")
    found = json.loads(result.stdout)
    assert (found["device"], found["weights_format"]) == ("cpu", "BF16")
    assert found["memory_bytes"] > 0


def test_settings_of_the_environment_count(model, monkeypatch):
    monkeypatch.setenv("SESSIOND_GPU_MEMORY_UTILIZATION", "0.8")
    assert json.loads(on_card(model, "--json").stdout)["total_tokens"] < 14_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "cuda"], "--memory must be bytes,"),
        (["--memory", "much"], "(got much)"),
        (["--overhead", "much"], "--overhead must be bytes,"),
        (["--weights-format", "q9"], "--weights-format must be one of float32, "),
        (["--devices", "3"], "--devices must be a divisor of 32 heads"),
        (["--images", "1", "--memory", "64GB"], "--images must be 0"),
        (["--block-size", "0"], "--block-size must be a whole number from 1 to 1024 (got 0)"),
        (["--model", "gone"], "--model=gone: model 'gone': no such file"),
        (["--model", "gone/config.json"], "model 'gone/config.json': no such file"),
        (["--model", "gone/model.gguf"], "model 'gone/model.gguf': no such file"),
        (
            ["--kv-cache-dtype", "int8", "--dtype", "float32"],
            "--kv-cache-dtype must be auto, float32, bfloat16, float16 or fp8",
        ),
    ],
)
def test_wrong_use_is_told(model, words, said):
    result = plan("--model", model, *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_server_with_other_kv_is_as_far_apart_as_the_tokens_that_it_holds(model):
    """Both pools have the bytes of `--kv-cache-memory`, so bytes would tell nothing."""
    words = ("--model", model, "--memory", "64GB", "--kv-cache-memory", "1GiB", "--json")
    same = json.loads(plan(*words, "--kv-cache-dtype", "bfloat16").stdout)
    capacity = {name: same[name] for name in ("block_size", "kv_bytes_per_token", "total_blocks")}
    with server({"GET /health/capacity": (200, capacity)}) as (url, _):
        for kv_cache_dtype, apart, code in (("bfloat16", 0.0, 0), ("int8", 0.94, 1)):
            result = plan(*words, "--url", url, "--kv-cache-dtype", kv_cache_dtype)
            found = json.loads(result.stdout)["server"]["apart"]
            assert (found, result.exit_code) == (pytest.approx(apart, abs=0.01), code)


def test_a_quantised_model_is_not_planned_as_if_it_were_not(tmp_path):
    config = SEVEN_B | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    silent = on_card(str(tmp_path))
    assert silent.exit_code == 2
    assert "(got none): weights of" in silent.stderr
    assert "'gptq'" in silent.stderr
    assert on_card(str(tmp_path), "--weights-format", "gptq").exit_code == 0
