"""What is made of the turns of a chat in a window."""

import json
from dataclasses import asdict

import pytest

from benchmarks.window_times import Prefill, WindowTurn, figures


def turn(number, ttft_ms, *, trimmed=False, computed=20, context=900):
    return WindowTurn(
        turn=number,
        trimmed=trimmed,
        ttft_ms=ttft_ms,
        input_tokens=context,
        computed_tokens=computed,
        output_tokens=16,
    )


def chat():
    """Sixteen turns: 10 ms, 20 ms in the second quarter, 15 in the last; each fifth is trimmed."""
    plain = [10.0] * 4 + [20.0] * 4 + [12.0] * 4 + [15.0] * 4
    return [
        turn(i, 300.0 + i, trimmed=True, computed=800) if i % 5 == 4 else turn(i, ms)
        for i, ms in enumerate(plain)
    ]


def test_quarters_leave_out_turns_with_a_trim():
    found = figures(chat(), [])
    assert found.first_quarter is not None
    assert (found.first_quarter.turns, found.first_quarter.median_ms) == (4, 10)
    assert found.second_quarter is not None
    assert (found.second_quarter.turns, found.second_quarter.p95_ms) == (3, 20)
    assert found.last_to_first == pytest.approx(1.5)
    assert found.last_to_second == pytest.approx(0.75)


def test_trims_are_counted_and_compared():
    pairs = [(4, 608.0), (9, 309.0), (14, 157.0)]
    found = figures(
        chat(), [Prefill(turn=turn, ttft_ms=ms, computed_tokens=820) for turn, ms in pairs]
    )
    assert (found.trims, found.trims_per_turn) == (3, 3 / 16)
    assert found.trimmed is not None
    assert (found.trimmed.median_ms, found.trimmed.p95_ms) == (309, 314)
    assert (found.trimmed_computed_tokens, found.prefill_computed_tokens) == (800, 820)
    assert found.trimmed_to_plain == pytest.approx(309 / 15)
    assert found.trimmed_to_prefill == pytest.approx(1), "the median of 0.5, 1 and 2"


def test_refusals_are_counted_and_have_no_times():
    served = [turn(i, 10.0, context=100 * i) for i in range(4)]
    refused = [WindowTurn(turn=i, refusal="context_length_exceeded") for i in range(4, 8)]
    found = figures([*served, *refused], [])
    assert (found.turns, found.first_refusal) == (8, 4)
    assert found.refusals == {"context_length_exceeded": 4}
    assert (found.longest_context_tokens, found.longest_reply_tokens) == (316, 16)
    assert json.loads(json.dumps(asdict(found)))["refusals"] == found.refusals
    assert found.last_quarter is None
    assert found.last_to_first is found.trimmed_to_prefill is None
