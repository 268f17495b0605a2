"""Compiles kernels for cards that are not there: `python -m tests.attention.compile_kernels`.

Reads cases as JSON from its standard input, one a line, and prints for each what the compiler made
of it. A process of its own, because kernels are either interpreted or compiled.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.model.attention.triton.kernels import attend_pages, merge_splits
from engine.model.attention.triton.tiling import (
    MERGED_SPLITS,
    Shapes,
    decode_tiling,
    prefill_tiling,
)

_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv"}
_NUMBERS = {"query_stride": "i32", "block_stride": "i32", "slot_stride": "i32", "scale": "fp32"}


def compiled(kernel, pointers, constants, arch, **options):
    """Compile with what a launch knows: pointers and strides are multiples of 16."""
    names = kernel.arg_names
    types = {name: f"*{kind}" for name, kind in pointers.items()} | _NUMBERS
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    source = ASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if name not in constants and name != "scale"
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def used(binary):
    """What ptxas gave the kernel."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        told = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", told).groups())
    return {
        "shared": binary.metadata.shared,
        "registers": registers,
        "stack": stack,
        "wide_copies": len(re.findall(r"cp\.async\.cg\.shared\.global.*0x10", binary.asm["ptx"])),
    }


def run(case):
    shapes = Shapes(**case["shapes"])
    dtype, kv = _TYPES[case["dtype"]], _TYPES[case["kv_dtype"]]
    common = {
        "HEAD_DIM": shapes.head_dim,
        "DIM": shapes.padded_dim,
        "WINDOW": case["window"],
    }
    if case["kernel"] == "merge":
        pages = decode_tiling(shapes).split_pages
        pointers = {"parts": "fp32", "weights": "fp32", "tiles": "i32", "out": dtype}
        constants = common | {"SPLITS": MERGED_SPLITS, "SPLIT_PAGES": pages}
        return used(compiled(merge_splits, pointers, constants, case["arch"], num_warps=1))
    tiling = (decode_tiling if case["kernel"] == "decode" else prefill_tiling)(shapes)
    pointers = {
        "queries": dtype,
        "keys": kv,
        "values": kv,
        "rotations": "fp32",
        "pages": "i32",
        "tiles": "i32",
        "out": "fp32" if tiling.split_pages else dtype,
        "weights": "fp32",
    }
    constants = common | {
        "GROUP": shapes.group,
        "PAGE_SIZE": shapes.page_size,
        "ROWS": tiling.rows,
        "SLOTS": tiling.slots,
        "TURN_KEYS": tiling.turn_keys,
        "SPLIT_PAGES": tiling.split_pages,
    }
    options = {"num_warps": tiling.warps, "num_stages": tiling.stages}
    return used(compiled(attend_pages, pointers, constants, case["arch"], **options))


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET") == "0"
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
