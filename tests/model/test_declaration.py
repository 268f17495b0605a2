"""The choice between backends of attention, over combinations of what they declare and facts."""

from dataclasses import replace
from itertools import product

import pytest

from engine.errors import ConfigError
from engine.model.attention.declaration import (
    AttentionRequirements,
    BackendCandidate,
    Declaration,
    Obstacle,
    Package,
    candidate,
    choose_attention,
)

HALVES = frozenset({"bfloat16", "float16"})
PLAIN = Declaration(
    name="plain",
    title="plain",
    device_types=frozenset({"cpu", "cuda"}),
    dtypes=HALVES | {"float32"},
    kv_dtypes=HALVES | {"float32", "float8_e4m3fn"},
)
KERNEL = Declaration(
    name="kernel",
    title="kernel",
    device_types=frozenset({"cuda"}),
    dtypes=HALVES,
    kv_dtypes=HALVES | {"float8_e4m3fn"},
    least_capability=(8, 0),
    head_multiple=16,
    max_head_dim=256,
    packages=(Package(name="kernels", at_least=(3,)),),
)
PAGES = Declaration(
    name="lib",
    title="lib 2.8",
    device_types=frozenset({"cuda"}),
    dtypes=HALVES,
    kv_dtypes=None,
    least_capability=(8, 0),
    page_multiple=256,
    position_form="absolute",
    packages=(Package(name="lib", at_least=(2, 8), below=(3,)),),
)
HOPPER = replace(
    PAGES,
    title="lib 4",
    page_multiple=1,
    least_capability=(9, 0),
    below_capability=(12, 0),
    windows=False,
    packages=(Package(name="lib-4", at_least=(4,)),),
)
ALL = (KERNEL, HOPPER, PAGES, PLAIN)
CARD = AttentionRequirements(
    device_type="cuda",
    capability=(9, 0),
    block_size=16,
    dtype="bfloat16",
    kv_dtype="bfloat16",
    head_dim=64,
    has_windows=False,
    installed={"kernels": (3, 4), "lib": (2, 8, 3), "lib-4": (4, 0, 0)},
)


def choose(wish, requirements, declarations=ALL):
    return choose_attention(wish, [candidate(each, requirements) for each in declarations])


@pytest.mark.parametrize(
    ("wish", "changes", "title"),
    [
        ("auto", {}, "kernel"),
        ("plain", {}, "plain"),
        ("lib", {}, "lib 4"),
        ("lib", {"block_size": 256, "capability": (8, 6)}, "lib 2.8"),
        ("lib", {"block_size": 256, "capability": (12, 0)}, "lib 2.8"),
        ("lib", {"block_size": 512, "has_windows": True}, "lib 2.8"),
        ("auto", {"installed": {}}, "plain"),
        ("auto", {"installed": {"kernels": (2, 9)}}, "plain"),
        ("auto", {"installed": {"lib": (3, 0)}, "block_size": 256}, "plain"),
        ("auto", {"installed": {"lib": (2, 8)}, "block_size": 256}, "lib 2.8"),
        ("auto", {"head_dim": 72, "block_size": 256}, "lib 4"),
        ("auto", {"head_dim": 320}, "lib 4"),
        ("auto", {"kv_dtype": "float8_e4m3fn"}, "kernel"),
        ("auto", {"kv_dtype": "float8_e4m3fn", "head_dim": 8}, "plain"),
        ("auto", {"dtype": "float32", "kv_dtype": "float32"}, "plain"),
        ("auto", {"capability": (7, 5)}, "plain"),
        ("auto", {"device_type": "cpu", "capability": None}, "plain"),
    ],
)
def test_takes_the_first_that_can_serve(wish, changes, title):
    assert choose(wish, replace(CARD, **changes)).declaration.title == title


@pytest.mark.parametrize(
    ("wish", "changes", "allowed"),
    [
        (
            "lib",
            {"installed": {"lib": (2, 8)}},
            (
                "plain, or lib with --block-size 256 (lib 2.8 needs blocks of a multiple of 256 "
                "tokens, not 16)"
            ),
        ),
        (
            "lib",
            {"installed": {"lib": (2, 8)}, "kv_dtype": "float8_e4m3fn"},
            (
                "plain, or lib with --kv-cache-dtype auto and --block-size 256 (lib 2.8 supports "
                "KV in the type of activations (bfloat16), not float8_e4m3fn, needs blocks of a "
                "multiple of 256 tokens, not 16)"
            ),
        ),
        (
            "lib",
            {"installed": {}},
            "plain, or lib with lib-4>=4 installed (lib 4 needs lib-4>=4 installed)",
        ),
        (
            "kernel",
            {"capability": (7, 5)},
            "plain (kernel needs compute capability 8.0 or more; this device has 7.5)",
        ),
        (
            "kernel",
            {"dtype": "float32", "kv_dtype": "float32"},
            (
                "plain, or kernel with --dtype bfloat16 or float16 and --kv-cache-dtype bfloat16 "
                "or float16 or fp8 (kernel computes in bfloat16, float16, not float32, supports KV "
                "in bfloat16, float16, float8_e4m3fn, not float32)"
            ),
        ),
        (
            "kernel",
            {"device_type": "cpu", "capability": None},
            "plain (kernel runs on cuda only, not on cpu)",
        ),
        (
            "kernel",
            {"head_dim": 24},
            (
                "lib, plain (kernel supports head dimensions of multiples of 16 up to 256; "
                "the model has 24)"
            ),
        ),
        ("lib", {"capability": (12, 0)}, "kernel, plain, or lib with --block-size 256 (lib 2.8"),
        ("other", {}, "kernel, lib, plain (there is no such backend)"),
    ],
)
def test_an_impossible_wish_says_what_would_work(wish, changes, allowed):
    with pytest.raises(ConfigError) as raised:
        choose(wish, replace(CARD, **changes))
    assert raised.value.name == "attention_backend"
    assert raised.value.value == wish
    assert raised.value.allowed.startswith(allowed)


def test_the_reason_names_what_was_in_the_way_of_each_better_one():
    chosen = choose("auto", replace(CARD, device_type="cpu", capability=None, installed={}))
    assert chosen.reason == (
        "the first suitable one (kernel runs on cuda only, not on cpu; lib 4 runs on cuda only, "
        "not on cpu; lib 2.8 runs on cuda only, not on cpu)"
    )
    chosen = choose("auto", replace(CARD, installed={}, block_size=48))
    assert chosen.reason == (
        "the first suitable one (kernel needs kernels>=3 installed; lib 4 needs lib-4>=4 "
        "installed; lib 2.8 needs blocks of a multiple of 256 tokens, not 48, needs lib>=2.8,<3 "
        "installed)"
    )
    assert choose("plain", CARD).reason == "set by --attention-backend"
    assert choose("auto", CARD).reason == "the first suitable one"


def test_auto_that_finds_nothing_says_each_ones_reasons():
    requirements = replace(CARD, kv_dtype="int8", block_size=3)
    with pytest.raises(ConfigError, match=r"kernel with --kv-cache-dtype .*; lib 4 .*; lib 2.8 "):
        choose("auto", requirements)


def test_what_is_chosen_has_no_obstacle_and_every_other_wish_is_refused():
    values = {
        "device_type": ("cpu", "cuda"),
        "capability": ((7, 5), (8, 0), (9, 0), (12, 1)),
        "block_size": (1, 16, 256),
        "dtype": ("float32", "bfloat16"),
        "kv_dtype": ("float32", "bfloat16", "float8_e4m3fn", "int8"),
        "head_dim": (24, 64, 512),
        "has_windows": (False, True),
        "installed": ({}, CARD.installed),
    }
    served = set()
    for combination in product(*values.values()):
        requirements = AttentionRequirements(**dict(zip(values, combination, strict=True)))
        candidates = [candidate(each, requirements) for each in ALL]
        able = [each.declaration for each in candidates if not each.obstacles]
        for wish in ("auto", "kernel", "lib", "plain"):
            fitting = [each for each in able if wish in ("auto", each.name)]
            if fitting:
                assert choose_attention(wish, candidates).declaration is fitting[0]
                served.add(fitting[0].title)
                continue
            with pytest.raises(ConfigError):
                choose_attention(wish, candidates)
    assert served == {"kernel", "lib 4", "lib 2.8", "plain"}


def test_obstacles_of_one_that_is_not_asked_here_are_taken_as_given():
    blocked = BackendCandidate(declaration=PLAIN, obstacles=(Obstacle(reason="was not built"),))
    chosen = choose_attention("auto", [blocked, candidate(KERNEL, CARD)])
    assert chosen.reason == "the first suitable one (plain was not built)"
    with pytest.raises(ConfigError, match=r"kernel \(plain was not built\)"):
        choose_attention("plain", [blocked, candidate(KERNEL, CARD)])
