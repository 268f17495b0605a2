"""What can ever be served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.partition import worst_case_blocks
from sessiond.errors import RequestError
from sessiond.sessions.turn_size import Room, admit_prefill, admit_reply

BLOCK = 16


def room(before, *, close=2, model=1000, pool=2000):
    return Room(before=before, close=close, max_model_len=model, pool=pool)


def code_of(work):
    with pytest.raises(RequestError) as error:
        work()
    return error.value.code, error.value.param


def test_a_prompt_must_leave_room_for_one_token():
    assert admit_reply(room(999), wanted=None, default=5) == 5
    assert code_of(lambda: admit_reply(room(1000), wanted=None, default=5)) == (
        "context_length_exceeded",
        "input",
    )
    admit_prefill(room(1000, close=0))
    assert code_of(lambda: admit_prefill(room(1001, close=0)))[0] == "context_length_exceeded"


def test_t29_what_exceeds_the_pool_is_too_large():
    assert code_of(lambda: admit_reply(room(200, pool=128), wanted=None, default=5)) == (
        "request_too_large",
        "input",
    )
    assert code_of(lambda: admit_reply(room(20, pool=128), wanted=107, default=5)) == (
        "request_too_large",
        "max_output_tokens",
    )
    assert admit_reply(room(20, pool=128), wanted=106, default=5) == 106
    assert code_of(lambda: admit_prefill(room(200, close=0, pool=128)))[0] == "request_too_large"


def test_the_default_is_capped_by_the_pool():
    assert admit_reply(room(100, pool=128), wanted=None, default=1024) == 26


@given(
    before=st.integers(0, 300),
    close=st.integers(0, 4),
    model=st.integers(1, 300),
    blocks=st.integers(1, 20),
    wanted=st.none() | st.integers(1, 400),
)
def test_what_is_admitted_the_engine_admits_too(before, close, model, blocks, wanted):
    """The engine compares the worst case with its pool; a turn it refuses was told too late."""
    asked = room(before, close=close, model=model, pool=blocks * BLOCK)
    try:
        output = admit_reply(asked, wanted=wanted, default=64)
    except RequestError:
        return
    assert 1 <= output <= (wanted or 64)
    assert before + 1 <= model
    needed = worst_case_blocks(
        context_tokens=before,
        prompt_tokens=0,
        max_output_tokens=output,
        close_tokens=close,
        block_size=BLOCK,
    )
    assert needed <= blocks
