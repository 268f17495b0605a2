"""Our kernels under `make soak`: every shape, every card, all laws of the engine."""

import itertools

import pytest

from engine.model.runner import TorchRunner
from tests.attention.entries import straight
from tests.attention.paged import Paged, spec_of
from tests.attention.test_triton_compiles import SHARED_BYTES, case, check
from tests.attention.test_triton_kernels import GROUPS, HEAD_DIMS, LENGTHS, PAGE_SIZES
from tests.attention.test_triton_laws import STOP, triton_runner
from tests.laws.backend import DenseBackend
from tests.laws.engine_laws import EngineLaws

pytestmark = pytest.mark.second

EVERY = [
    case(kernel, arch, page=page, dim=dim, group=group, dtype=dtype, kv=kv, window=window)
    for arch in SHARED_BYTES
    for dtype, kv in (
        ("bfloat16", "bfloat16"),
        ("float16", "float16"),
        ("bfloat16", "float8_e4m3fn"),
        ("float32", "float32"),
    )
    if arch >= 89 or kv != "float8_e4m3fn"
    for dim, page, group, window in (
        (128, 16, 1, 0),
        (128, 16, 8, 0),
        (128, 64, 4, 4096),
        (128, 3, 4, 0),
        (64, 16, 3, 0),
        (64, 17, 4, 64),
        (80, 32, 1, 0),
        (96, 256, 7, 0),
        (16, 16, 2, 0),
        (256, 16, 4, 0),
    )
    for kernel in ("decode", "prefill", "merge")
]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("group", "head_dim", "page_size"), [*itertools.product(GROUPS, HEAD_DIMS, PAGE_SIZES)]
)
def test_every_shape(group, head_dim, page_size):
    spec = spec_of(group=group, head_dim=head_dim)
    lengths = [*LENGTHS, *LENGTHS[4:]]
    counts = [1] * len(LENGTHS) + [16, 9, 33, 30]
    Paged(spec, straight(lengths, page_size), counts, page_size=page_size).check()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_shape_compiles(tmp_path):
    assert sum(1 for _ in check(EVERY, tmp_path)) == len(EVERY)


class TritonBackend(DenseBackend):
    """See tests.laws.backend.Backend."""

    vocab_size = 256
    stop_id = STOP
    steps = 100
    block_sizes = (3, 16)

    def runner(self, num_blocks: int, block_size: int) -> TorchRunner:
        return triton_runner(num_blocks, block_size)

    @property
    def dense(self) -> TorchRunner:
        return triton_runner(40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
class TestTritonLaws(EngineLaws):
    backend = TritonBackend()
