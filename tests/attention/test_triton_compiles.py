"""Our kernels compile for the cards they are for, within each card's shared memory and registers.

No GPU is needed: ptxas comes with Triton. What they compute there is another question.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.second

pytest.importorskip("triton")

KIB = 1024
SHARED_BYTES = {80: 163 * KIB, 86: 99 * KIB, 89: 99 * KIB, 90: 227 * KIB}  # of one program
ROOT = Path(__file__).parents[2]


def case(kernel, arch, *, page=16, dim=128, group=4, dtype="bfloat16", kv=None, window=0):
    shapes = {
        "group": group,
        "head_dim": dim,
        "page_size": page,
        "itemsize": 4 if dtype == "float32" else 2,
        "shared_bytes": SHARED_BYTES[arch],
    }
    names = {"kernel": kernel, "arch": arch, "dtype": dtype, "kv_dtype": kv or dtype}
    return names | {"window": window, "shapes": shapes}


# what a 7B-class model runs with the default pages, and each other way through the kernel
USUAL = [
    case("decode", 90),
    case("prefill", 90),
    case("merge", 90),
    case("decode", 80),
    case("prefill", 80),
    case("decode", 90, page=64),
    case("prefill", 90, page=256, window=4096),
    case("decode", 90, page=17, dim=80, window=64),
    case("prefill", 89, kv="float8_e4m3fn", dtype="float16"),
]


def compile_all(cases, folder):
    """Each case's figures, from a process in which nothing is interpreted."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.attention.compile_kernels"],
        input="\n".join(map(json.dumps, cases)),
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return list(map(json.loads, done.stdout.splitlines()))


def check(cases, folder):
    results = compile_all(cases, folder)
    for one, result in zip(cases, results, strict=True):
        print(one, result)  # noqa: T201 -- figures, shown with -rP
    for one, result in zip(cases, results, strict=True):
        assert result["shared"] <= SHARED_BYTES[one["arch"]], (one, result)
        yield one, result


SPILLED_BYTES = 32  # of a thread, at most: compilers differ by a few


@pytest.mark.timeout(600)
def test_the_usual_shapes_keep_to_registers_and_copy_16_bytes_at_a_time(tmp_path):
    for one, result in check(USUAL, tmp_path):
        assert result["stack"] <= SPILLED_BYTES, (one, result)
        assert result["wide_copies"] or one["kernel"] == "merge", (one, result)
