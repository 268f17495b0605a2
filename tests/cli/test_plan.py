"""`sessiond plan`: pages for people, JSON for scripts, a server beside it, wrong use in words."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli
from tests.cli.test_commands import server
from tests.planning.test_memory_plan import LLAVA, SEVEN_B

CONFIGS = Path(__file__).parents[1] / "planning" / "configs"


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
        "seven (llama): 6.74 billion weights in float16",
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
        (["--device", "cuda", "--memory", "24"], "below 1000 with its unit (got 24)"),
        (["--overhead", "2"], "--overhead must be bytes, or a number with KiB, MiB,"),
        (["--image-size", "1024"], "--image-size must be WIDTHxHEIGHT in pixels, as in 1024x768"),
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


def of(name, memory, *words):
    """What a plan of a known config on a GPU says: its page in one line, and its JSON."""
    words = (
        "--model",
        str(CONFIGS / f"{name}.json"),
        "--device",
        "cuda",
        "--memory",
        memory,
        *words,
    )
    return " ".join(plan(*words).stdout.split()), json.loads(plan(*words, "--json").stdout)


def test_r03_m07_weights_that_exceed_the_gpu_are_named_with_what_would_fit():
    page, found = of("qwen2.5-72b", "80GB")
    assert "weights in bfloat16 take 135 GiB, which is more than the 67.1 GiB" in page
    assert "would fit: --weights-format q6_k (55.5 GiB), --weights-format q4_1 (42.3 GiB)" in page
    assert "would fit in other servers: --weights-format gptq (38.6 GiB)" in page
    assert "--devices 4 (33.9 GiB on each)" in page
    assert "kv_cache_memory" not in page
    ways = {(way["weights_format"], way["devices"]): way for way in found["would_fit"]}
    assert ways["q6_k", 1]["weights_bytes"] == pytest.approx(72.7e9 * 6.5625 / 8, rel=0.01)
    assert ways[None, 4]["weights_bytes"] == pytest.approx(72.7e9 * 2 / 4, rel=0.01)
    page, found = of("qwen2.5-72b", "80GB", "--weights-format", "q6_k")
    assert (found["refusal"], found["runner"]) == (None, "torch")


def test_r03_m07_a_larger_share_is_offered_where_it_is_enough():
    page, _ = of("llama-3.1-8b", "17.8GB")
    assert "Nothing fits" in page
    page, _ = of("llama-3.1-8b", "18.7GB")
    assert "--gpu-memory-utilization 0.88 leaves 2.0 GiB" in page


@pytest.mark.parametrize(
    ("name", "runner", "reason"),
    [
        ("llama-3.1-8b", "torch", "the device is a GPU"),
        ("mistral-7b-v0.1", "torch", "the device is a GPU"),
        ("gemma-2-27b", "none", "architectures must be a list with one of LlamaForCausalLM,"),
        ("qwen2.5-vl-7b", "none", "(got ['Qwen2_5_VLForConditionalGeneration'])"),
    ],
)
def test_r03_m07_the_report_names_the_runner(name, runner, reason):
    page, found = of(name, "80GB")
    assert found["runner"] == runner
    assert reason in found["runner_reason"]
    assert f"runner: {runner}" in page


def test_r03_m07_the_native_kernels_are_named_on_a_cpu():
    words = ("--model", str(CONFIGS / "llama-3.2-1b.json"), "--memory", "64GB", "--json")
    found = json.loads(plan(*words).stdout)
    assert (found["runner"], found["runner_reason"]) == ("native", None)
    found = json.loads(plan(*words, "--dtype", "float32").stdout)
    assert (found["runner"], found["runner_reason"][:13]) == ("torch", "dtype=float32")


def test_r03_m07_sliding_layers_hold_no_more_than_their_window():
    page, found = of("gemma-3-4b", "80GB", "--session-tokens", "131072", "--text-tokens", "131072")
    assert "34 layers (29 of them see 1024 tokens)" in page
    assert "136.0 KiB each, 20.0 KiB beyond the window" in page
    whole = 131072 * 20 * 1024 + 1024 * 116 * 1024
    assert found["load"]["kv_bytes"] == whole
    assert found["sessions"] == {"131072": found["kv_bytes"] // whole}


def test_r03_m07_images_take_as_many_tokens_as_their_size_makes():
    assert of("qwen2.5-vl-7b", "80GB")[1]["tokens_per_image"] == 37 * 37
    wide = of("qwen2.5-vl-7b", "80GB", "--image-size", "1120x560", "--images", "2")
    assert wide[1]["tokens_per_image"] == 40 * 20
    assert wide[1]["load"]["tokens"] == 2 * 40 * 20
    assert of("gemma-3-4b", "80GB", "--image-size", "64x64")[1]["tokens_per_image"] == 256
    assert of("smolvlm-256m", "80GB")[1]["tokens_per_image"] == 64


def test_r03_m07_experts_alone_are_in_four_bits_in_mxfp4():
    """gpt-oss-120b is published with about 65 GB."""
    _, found = of("gpt-oss-120b", "141GB", "--weights-format", "mxfp4")
    assert found["weights_bytes"] == pytest.approx(65.2e9, rel=0.005)


def test_r03_m07_a_latent_is_not_divided_among_devices():
    _, found = of("deepseek-v3", "141GB", "--devices", "32")
    assert found["kv_bytes_per_token"] == (512 + 64) * 61 * 2


def test_r03_m07_images_of_several_requests_and_an_encoder_in_main_memory():
    words = ("--images", "4", "--text-tokens", "100")
    one = of("llava-1.5-7b", "24GB", *words)[1]
    three = of("llava-1.5-7b", "24GB", *words, "--image-requests", "3")[1]
    assert three["vision_activation_bytes"] == 3 * one["vision_activation_bytes"] > 0
    assert (three["load"]["tokens"], three["total_blocks"] < one["total_blocks"]) == (2404, True)
    page, aside = of("llava-1.5-7b", "24GB", *words, "--encoder-on-cpu")
    assert (aside["vision_bytes"], aside["vision_activation_bytes"]) == (0, 0)
    assert aside["encoder_host_bytes"] == one["vision_bytes"] + one["vision_activation_bytes"]
    freed = (aside["total_blocks"] - one["total_blocks"]) * 16 * one["kv_bytes_per_token"]
    assert freed == pytest.approx(aside["encoder_host_bytes"], abs=2 * 8 * 2**20)
    assert "the encoder takes" in page
