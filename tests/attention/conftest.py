"""One thread for torch, as the interpreter hands it many tiny arrays; and a tensor core in it."""

import os

import numpy as np
import pytest

from tests.model.conftest import one_thread

__all__ = ["one_thread"]


@pytest.fixture(autouse=True, scope="package")
def tensor_core():
    """Let products in Triton's interpreter be those of a tensor core.

    It multiplies the bits of bfloat16 as whole numbers (triton-lang/triton, issue 11584: not
    supported), and its BLAS sums a row in an order that depends on the row's place in the tile.
    """
    if os.environ["TRITON_INTERPRET"] != "1":
        yield
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    language = pytest.importorskip("triton.language")
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
