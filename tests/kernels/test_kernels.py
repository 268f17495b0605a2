"""Each kernel equals its float reference at odd sizes, and itself however the work is cut."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.model.kernels.library import Format
from tests.kernels import attention, support
from tests.kernels.attention import Shape

few = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
seeds = st.integers(0, 2**16)
columns = st.integers(1, 5).map(lambda pairs: 64 * pairs)


@st.composite
def ranges(draw):
    """Valid slots of up to 8 blocks, most of them full, as edits of a page table leave them."""
    full = st.just((0, 15))
    part = st.tuples(st.integers(0, 15), st.integers(0, 15)).map(lambda pair: tuple(sorted(pair)))
    return tuple(draw(st.lists(st.one_of(full, full, part), min_size=1, max_size=8)))


@st.composite
def shapes(draw):
    table = draw(ranges())
    count = sum(last - first + 1 for first, last in table)
    group = draw(st.sampled_from([1, 2, 3, 5, 7]))
    kind = draw(st.sampled_from(["bfloat16", "float32", "int8"]))
    return Shape(
        ranges=table,
        rows=draw(st.integers(1, min(count, 9))),
        kv_heads=draw(st.integers(1, 2)),
        group=group,
        head_dim=draw(st.sampled_from([16, 32, 48, 64, 80, 128])),
        window=draw(st.sampled_from([0, 0, 1, 20])),
        is_float=kind == "float32",
        is_int8=kind == "int8",
    )


@pytest.mark.parametrize("kind", list(Format), ids=lambda kind: kind.name)
@few
@given(tiles=st.integers(1, 5), columns=columns, rows=st.integers(1, 19), seed=seeds)
def test_linear_equals_float_reference_and_itself_row_by_row(kernels, kind, **sizes):
    support.check_linear(kernels, kind, **sizes)


@pytest.mark.parametrize("kind", list(Format), ids=lambda kind: kind.name)
@few
@given(tiles=st.integers(1, 3), columns=columns, seed=seeds)
def test_rows_come_back_out_of_their_tiles(kernels, kind, tiles, columns, seed):
    support.check_unpack(kernels, kind, tiles, columns, seed)


@few
@given(width=st.integers(1, 700), is_bfloat=st.booleans(), seed=seeds)
def test_norm_rounds_within_half_a_step(kernels, width, is_bfloat, seed):
    support.check_normalize(kernels, width, is_bfloat, seed)


@few
@given(rows=st.integers(1, 9), units=st.integers(1, 3), is_bfloat=st.booleans(), seed=seeds)
def test_swiglu_rounds_within_half_a_step(kernels, rows, units, is_bfloat, seed):
    support.check_swiglu(kernels, rows, units, is_bfloat, seed)


@few
@given(shape=shapes(), seed=seeds)
def test_attention_equals_float_reference_and_itself_in_any_tile_and_place(kernels, shape, seed):
    attention.check_attention(kernels, shape, seed)


@few
@given(shape=shapes(), seed=seeds)
def test_int8_kv_rounds_within_half_a_step_of_each_slots_scale(kernels, shape, seed):
    attention.check_int8_kv(kernels, replace(shape, is_float=False, is_int8=True), seed)


@few
@given(count=st.integers(1, 100), seed=seeds)
def test_argmax_is_the_lowest_id_and_names_bad_logits(kernels, count, seed):
    support.check_argmax(kernels, count, seed)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 15, 16, 31, 70, 127])
def test_rounding_hides_no_bad_activation(kernels, place, value):
    support.check_bad_activation(kernels, place, value)


@pytest.mark.parametrize("kv", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("token", [0, 7, 40])
def test_a_bad_key_is_not_taken_for_a_masked_one(kernels, token, kv):
    shape = Shape(
        ranges=((0, 15),) * 3,
        rows=2,
        kv_heads=2,
        group=3,
        head_dim=64,
        window=0,
        is_float=kv == "float32",
        is_int8=kv == "int8",
    )
    attention.check_bad_key(kernels, shape, token)
