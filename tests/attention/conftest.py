"""One thread for torch, as the interpreter hands it many tiny arrays; and a tensor core in it."""

import os
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

from tests.model.conftest import one_thread
from tests.soak import SOAK

__all__ = ["one_thread"]

_KERNELS = [f"test_triton_{name}.py" for name in ("kernels", "invariance", "laws", "soak")]

if find_spec("triton") is None:  # there is none for this machine
    collect_ignore = _KERNELS
elif not SOAK:
    collect_ignore = _KERNELS[-1:]


@pytest.fixture(autouse=True, scope="package")
def tensor_core():
    """Let products in Triton's interpreter be those of a tensor core.

    It multiplies the bits of bfloat16 as whole numbers (triton-lang/triton, issue 11584: not
    supported), and its BLAS sums a row in an order that depends on the row's place in the tile.
    """
    if os.environ["TRITON_INTERPRET"] != "1" or find_spec("triton") is None:
        yield
        return
    interpreter = import_module("triton.runtime.interpreter")
    language = import_module("triton.language")
    builder = interpreter.InterpreterBuilder
    before = builder.create_dot

    def widened(handle):
        if handle.dtype == language.bfloat16:
            return (handle.data.astype(np.uint32) << 16).view(np.float32)
        return handle.data.astype(np.float32)

    def create_dot(self, a, b, into, *precision):
        products = np.einsum("ik,kj->ij", widened(a), np.ascontiguousarray(widened(b)))
        return interpreter.TensorHandle(products + into.data, into.dtype.scalar)

    builder.create_dot = create_dot
    yield
    builder.create_dot = before
