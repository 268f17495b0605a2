"""Runs every kernel and whole steps once, at odd sizes. `test_sanitizers` runs it sanitised.

`python -m tests.kernels.drive LIBRARY`
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from engine.config import EngineConfig
from engine.errors import Corruption
from engine.files.spec_reader import read_spec
from engine.model.kernels.library import Format
from engine.model.native import prepare_native_model
from tests.kernels import attention, support
from tests.kernels.laws import by_chunks, part, together
from tests.kernels.tiny_model import write_tiny_model

RANGES = (((0, 15),) * 5 + ((3, 9), (0, 15), (0, 4)), ((2, 2),), ((0, 15), (0, 0)))


def drive_kernels(kernels):
    for kind in Format:
        for tiles, columns, rows in ((1, 64, 1), (3, 128, 15), (2, 192, 2), (1, 320, 8)):
            support.check_linear(kernels, kind, tiles=tiles, columns=columns, rows=rows, seed=rows)
        support.check_unpack(kernels, kind, 3, 192, 1)
    for is_bfloat in (False, True):
        support.check_normalize(kernels, 77, is_bfloat, 1)
        support.check_swiglu(kernels, 5, 3, is_bfloat, 1)
    for count in (1, 15, 16, 33):
        support.check_argmax(kernels, count, count)
    support.check_bad_activation(kernels, 20, float("nan"))
    for kv in ("bfloat16", "float32", "int8"):
        for ranges in RANGES:
            for group, head_dim, window in ((3, 64, 0), (1, 16, 5), (7, 80, 0), (5, 256, 0)):
                shape = attention.Shape(
                    ranges=ranges,
                    rows=min(9, sum(last - first + 1 for first, last in ranges)),
                    kv_heads=2,
                    group=group,
                    head_dim=head_dim,
                    window=window,
                    is_float=kv == "float32",
                    is_int8=kv == "int8",
                )
                attention.check_attention(kernels, shape, 1)
                if shape.is_int8:
                    attention.check_int8_kv(kernels, shape, 1)


def drive_steps(path, isa):
    os.environ["SESSIOND_CPU_ISA"] = isa
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 203, 300).tolist()
    with tempfile.TemporaryDirectory() as folder:
        for family, kv in (("qwen2", "auto"), ("qwen3", "int8"), ("mistral", "auto")):
            model_path = write_tiny_model(Path(folder) / family, family)
            config = EngineConfig(model=str(model_path), kv_cache_dtype=kv)
            model = prepare_native_model(
                read_spec(model_path), config, threads=2, library_path=path
            )
            runner = model.runner(40)
            blocks = rng.permutation(40).tolist()
            whole = by_chunks(runner, ids, blocks, [100])
            np.testing.assert_array_equal(by_chunks(runner, ids, blocks, [1, 2, 270]), whole)
            together(runner, [(ids[:70], blocks[5 * i : 5 * i + 5]) for i in range(5)], 17)
            try:
                runner.execute([part(ids, 0, 20, [0, 40])])
            except Corruption:
                continue
            raise AssertionError


def main():
    path = Path(sys.argv[1])
    for isa, kernels in support.kernels_of(path).items():
        drive_kernels(kernels)
        drive_steps(path, isa)
        sys.stdout.write(f"{isa} clean\n")


if __name__ == "__main__":
    main()
