"""What the triton backend declares, and a machine without Triton."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.model.attention.declaration import AttentionRequirements, candidate, choose_attention
from engine.model.attention.triton.declaration import DECLARATIONS
from tests.laws.law_model import law_model

ROOT = Path(__file__).parents[2]


def requirements(**changes):
    usual = {
        "device_type": "cuda",
        "capability": (9, 0),
        "block_size": 16,
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "head_dim": 128,
        "has_windows": True,
        "installed": {"triton": (3, 7, 1)},
    }
    return AttentionRequirements(**usual | changes)


def chosen(**changes):
    candidates = [candidate(each, requirements(**changes)) for each in DECLARATIONS]
    return choose_attention("triton", candidates).declaration


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block_size": 1},
        {"block_size": 17},
        {"head_dim": 80},
        {"head_dim": 256},
        {"dtype": "float16", "kv_dtype": "float16"},
        {"dtype": "float32", "kv_dtype": "bfloat16"},
        {"kv_dtype": "float8_e4m3fn"},
        {"kv_dtype": "float8_e4m3fn", "capability": (8, 9)},
        {"capability": (8, 0)},
    ],
)
def test_it_serves(changes):
    declaration = chosen(**changes)
    assert declaration.name == "triton"
    assert declaration.position_form == "slot"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device_type": "cpu", "capability": None}, "runs on cuda only"),
        ({"capability": (7, 5)}, "needs compute capability 8.0"),
        ({"kv_dtype": "float8_e4m3fn", "capability": (8, 0)}, "float8_e4m3fn"),
        ({"head_dim": 512}, "the model has 512"),
        ({"installed": {}}, "needs triton>=3.5 installed"),
        ({"installed": {"triton": (2, 3)}}, "needs triton>=3.5 installed"),
    ],
)
def test_it_says_why_not(changes, said):
    with pytest.raises(ConfigError, match="attention_backend") as caught:
        chosen(**changes)
    assert said in str(caught.value)


def run_without_triton(code):
    """In a process in which importing triton fails as where it isn't installed."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['triton'] = None\n{code}"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_triton_all_but_the_backend_can_be_imported():
    done = run_without_triton(
        "import engine.model.runner, engine.model.attention.triton.declaration\n"
        "import sessiond.__main__"
    )
    assert done.returncode == 0, done.stderr


def test_without_triton_the_backend_says_what_would_work():
    done = run_without_triton("import engine.model.attention.triton.backend")
    last = done.stderr.strip().splitlines()[-1]
    assert "ConfigError: attention_backend must be torch, or triton" in last
    assert "once its package is installed" in last


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
        subprocess.CalledProcessError(1, ["gcc", "main.c"]),
        PermissionError("cannot create /home/nobody/.triton"),
    ],
)
def test_where_triton_cant_build_its_launcher_it_is_said_what_would_work(error, monkeypatch):
    pytest.importorskip("triton")
    backend = import_module("engine.model.attention.triton.backend")

    def broken(_device):
        raise error

    monkeypatch.setattr(backend, "shared_bytes", broken)
    llama = law_model().llama
    with pytest.raises(ConfigError, match=r"must be torch, or triton once .* C compiler") as caught:
        backend.build(llama.spec, llama.arithmetic, DECLARATIONS[0])
    assert str(error) in str(caught.value)
