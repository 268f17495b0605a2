"""flash-attn in each version equals the law model, and gets what it demands."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from engine.errors import ConfigError, Corruption
from engine.ids import BlockId
from engine.kv.page_table import PageEntry
from engine.kv.step import SequenceStep
from engine.model.attention.declaration import AttentionRequirements, candidate, choose_attention
from engine.model.attention.flash.declaration import DECLARATIONS, VERSION_2, VERSION_3, VERSION_4
from engine.model.attention.flash.library import find_library
from tests.laws.law_model import law_model, law_spec
from tests.model.flash_libraries import Version2, Version3, Version4, module
from tests.model.flash_models import flash_model
from tests.model.support import prefill_logits, random_ids, step

VERSIONS = [
    ("2", 256), ("2", 512), ("3", 1), ("3", 3), ("3", 16), ("4", 128), ("4 on Hopper", 16),
]  # fmt: skip
WINDOWED = dataclasses.replace(law_spec(), sliding_window=11, window_layers=(False, True))
SPECS = [pytest.param(law_spec(), id="full"), pytest.param(WINDOWED, id="window")]
BLOCKS = 160


def near(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("version", "size"), VERSIONS)
def test_prefill_in_chunks_equals_the_law_model(version, size, spec):
    ids = random_ids(70)
    runner = flash_model(version, size, spec)[0].runner(BLOCKS)
    expected = prefill_logits(law_model(spec).runner(5), ids, range(5))
    blocks = list(range(BLOCKS - 1, -1, -1))
    near(prefill_logits(runner, ids, blocks, chunk=23), expected)
    near(prefill_logits(runner, ids, blocks, chunk=1), expected)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("version", "size"), VERSIONS)
def test_a_mixed_step_equals_each_sequence_alone(version, size, spec):
    model, calls = flash_model(version, size, spec)
    runner = model.runner(BLOCKS)
    law = law_model(spec).runner(5)
    texts = [random_ids(length, seed=length) for length in (1, 16, 17, 40)]
    homes = [range(at, BLOCKS, 4) for at in range(4)]
    for text, home in zip(texts[1:], homes[1:], strict=True):
        prefill_logits(runner, text[:-1], home)
    steps = [
        step(text, len(text) - 1, home, block_size=size)
        for text, home in zip(texts, homes, strict=True)
    ]
    expected = torch.cat([prefill_logits(law, text, range(5))[-1:] for text in texts])
    near(runner.logits(steps, every_token=True), expected)
    assert calls[-1] in ("one", "any")
    steps[2] = step(texts[2], 3, homes[2], block_size=size)  # a chunk beside single tokens
    rows = runner.logits(steps, every_token=True)
    near(rows[2:-1], prefill_logits(law, texts[2], range(5))[3:])
    near(rows[[0, 1, -1]], expected[[0, 1, 3]])
    assert calls[-1] in ("many", "any")


@pytest.mark.parametrize(("version", "size"), [("2", 256), ("3", 16), ("4 on Hopper", 16)])
def test_what_spoilt_a_block_is_no_matter_to_who_takes_it_next(version, size):
    ids = random_ids(20)
    model, _ = flash_model(version, size)
    runner = model.runner(2)
    poison = model.llama.weights.embedding
    kept = poison[5].clone()
    poison[5] = torch.nan
    spoilt = runner.logits([step([5] * 30, 0, [0, 1], block_size=size)], every_token=True)
    assert not spoilt.isfinite().any(), "who sees such a token must not answer"
    poison[5] = kept
    expected = prefill_logits(law_model().runner(5), ids, range(5))
    near(prefill_logits(runner, ids, [1, 0], chunk=7), expected)


def test_pages_with_holes_are_refused():
    runner = flash_model("3", 4)[0].runner(4)
    holes = [
        [PageEntry(BlockId(0), 0, 2, 0), PageEntry(BlockId(1), 0, 1, 3)],
        [PageEntry(BlockId(0), 1, 3, -1), PageEntry(BlockId(1), 0, 1, 3)],
        [PageEntry(BlockId(0), 0, 3, 0), PageEntry(BlockId(1), 0, 1, 8)],
    ]
    for entries in holes:
        last = entries[-1]
        bad = SequenceStep(
            token_ids=[1], first_position=last.base + last.last, entries=entries, sample=None
        )
        with pytest.raises(Corruption, match="must be full and at their positions"):
            runner.logits([bad])


INSTALLED = {"flash-attn": (2, 8, 3), "flash-attn-3": (3, 0, 0), "flash-attn-4": (4, 0, 0)}


def chosen(capability, block_size, *packages, head_dim=128):
    requirements = AttentionRequirements(
        device_type="cuda",
        capability=capability,
        block_size=block_size,
        dtype="bfloat16",
        kv_dtype="bfloat16",
        head_dim=head_dim,
        has_windows=False,
        installed={name: INSTALLED[name] for name in packages},
    )
    return choose_attention("flash", [candidate(each, requirements) for each in DECLARATIONS])


@pytest.mark.parametrize(
    ("capability", "block_size", "packages", "title"),
    [
        ((9, 0), 16, ("flash-attn", "flash-attn-3", "flash-attn-4"), "flash-attn 3"),
        ((9, 0), 16, ("flash-attn", "flash-attn-4"), "flash-attn 4"),
        ((9, 0), 256, ("flash-attn",), "flash-attn 2"),
        ((10, 0), 16, ("flash-attn", "flash-attn-3", "flash-attn-4"), "flash-attn 4"),
        ((8, 9), 512, ("flash-attn", "flash-attn-4"), "flash-attn 2"),
        ((12, 0), 256, ("flash-attn", "flash-attn-4"), "flash-attn 2"),
    ],
)
def test_the_best_installed_version_that_the_device_has_is_taken(
    capability, block_size, packages, title
):
    assert chosen(capability, block_size, *packages).declaration.title == title


@pytest.mark.parametrize(
    ("capability", "block_size", "packages", "advice"),
    [
        ((8, 0), 16, ("flash-attn",), "flash with --block-size 256"),
        ((8, 0), 16, (), "flash with --block-size 256 and flash-attn>=2.8,<3 installed"),
        ((9, 0), 256, (), "needs flash-attn-3>=3,<4 installed"),
        ((9, 0), 256, (), "needs flash-attn-4>=4,<5 installed"),
        ((9, 0), 256, (), "flash with flash-attn>=2.8,<3 installed"),
        ((7, 5), 256, ("flash-attn",), "needs compute capability 8.0 or more"),
    ],
)
def test_what_can_not_be_is_refused_with_what_would_work(capability, block_size, packages, advice):
    with pytest.raises(ConfigError, match="attention_backend") as refused:
        chosen(capability, block_size, *packages)
    assert advice in str(refused.value)


def test_a_module_is_found_where_its_version_has_it():
    there = {"flash_attn_3.flash_attn_interface": module(Version3())}

    def importer(name):
        if name not in there:
            raise ImportError(f"No module named {name}")
        return there[name]

    assert find_library(VERSION_3, importer) is there["flash_attn_3.flash_attn_interface"]
    there["flash_attn"], there["flash_attn.cute"] = module(Version2()), module(Version4())
    assert find_library(VERSION_2, importer) is there["flash_attn"]
    assert find_library(VERSION_4, importer) is there["flash_attn.cute"]


def test_a_library_that_can_not_be_imported_is_told_with_its_reason():
    def importer(name):
        raise OSError(f"{name}_C.so: undefined symbol: _ZN3c10")

    with pytest.raises(ConfigError) as refused:
        find_library(VERSION_2, importer)
    assert "undefined symbol: _ZN3c10" in str(refused.value)
    assert "flash-attn>=2.8,<3 built for this torch and CUDA" in str(refused.value)


def test_a_library_without_the_function_is_told():
    old = SimpleNamespace(flash_attn_varlen_func=print)
    with pytest.raises(ConfigError, match="flash_attn has no flash_attn_with_kvcache"):
        find_library(VERSION_2, lambda _name: old)
