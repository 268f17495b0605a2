"""What is made of the times at which tokens arrived."""

import pytest

from benchmarks.turn_times import TurnTimes, decode_rate, figures, growth_figures, percentile


def turn(*text_at_s, sent_at_s=0.0, tokens=None, input_tokens=0):
    return TurnTimes(
        sent_at_s=sent_at_s,
        text_at_s=text_at_s,
        input_tokens=input_tokens,
        cached_tokens=0,
        output_tokens=len(text_at_s) if tokens is None else tokens,
    )


def test_columns_of_sessions():
    first = [turn(1.0, 1.1, 1.2), turn(5.2, 5.3, 5.9, sent_at_s=5.0)]
    second = [turn(3.0, 3.2, 3.4), turn(8.4, 8.5, 8.6, sent_at_s=8.0)]
    columns = figures([first, second], wall_s=10.0)
    assert columns == pytest.approx(
        {
            "tok_s": 1.2,
            "ttft_first_ms": 2000,
            "ttft_later_ms": 300,
            "ttft_p95_ms": 3000,
            "itl_ms": 150,
            "worst_gap_ms": 600,
        }
    )


def test_several_tokens_in_one_piece_of_text_count_as_what_they_are():
    assert turn(1.0, 2.0, tokens=5).itl_s == pytest.approx(0.25)


def test_a_reply_of_one_token_has_no_time_between_tokens():
    columns = figures([[turn(1.0)]], wall_s=1.0)
    assert "itl_ms" not in columns
    assert "ttft_later_ms" not in columns


def test_decode_rate_counts_only_while_all_write():
    early = turn(*[0.1 * i for i in range(100)])  # 0 to 9.9, 10 per second
    late = turn(*[5.05 + 0.1 * i for i in range(100)])  # 5.05 to 14.95
    assert decode_rate([early, late]) == pytest.approx(20, rel=0.05)


def test_decode_rate_of_streams_that_never_meet_is_none():
    assert decode_rate([turn(1.0, 2.0), turn(3.0, 4.0)]) is None


def test_growth_takes_the_turns_nearest_to_the_marks():
    turns = [
        turn(0.5, 0.6, input_tokens=440),
        turn(1.0, 1.2, input_tokens=3900),
        turn(2.0, 2.3, input_tokens=7800),
    ]
    assert growth_figures(turns, [400, 8000]) == pytest.approx(
        {
            "ttft_ms_at_400": 500,
            "itl_ms_at_400": 100,
            "ttft_ms_at_8000": 2000,
            "itl_ms_at_8000": 300,
        }
    )


def test_percentile_is_a_value_that_occurred():
    assert percentile([4.0, 1.0, 3.0, 2.0], 95) == 4.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.0
