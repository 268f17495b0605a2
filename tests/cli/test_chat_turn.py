import json

import pytest

from sessiond.cli.chat_turn import ChatTurn, Notice, ProtocolFaultError, ReplyText
from tests.cli.scripted_server import reply


def feed_all(turn, frames, step_s=0.5):
    parts = []
    for index, frame in enumerate(frames):
        parts += turn.feed(json.dumps(frame), at_s=step_s * (index + 1))
    return parts


def test_text_and_end_come_out_of_a_whole_turn():
    turn = ChatTurn(sent_at_s=0.0)
    parts = feed_all(turn, reply("a b c", cached=6, inputs=10, outputs=3))
    assert parts[:3] == [ReplyText(text="a"), ReplyText(text=" b"), ReplyText(text=" c")]
    assert parts[3:] == [turn.end]
    assert (turn.end.outcome, turn.end.tip, turn.session_id) == ("completed", "resp_1", "conv_1")


def test_numbers_are_those_of_the_usage_and_of_the_clients_clock():
    turn = ChatTurn(sent_at_s=0.0)
    feed_all(turn, reply("a b c", cached=6, inputs=10, outputs=3))
    stats = turn.end.stats
    assert (stats.reused_tokens, stats.new_tokens, stats.output_tokens) == (6, 4, 3)
    assert stats.ttft_s == 1.0  # created at 0.5, first delta at 1.0
    assert stats.total_s == 2.5
    assert stats.tokens_per_s == pytest.approx(2 / 1.5)


def test_recomputed_tokens_are_not_called_new():
    turn = ChatTurn(sent_at_s=0.0)
    feed_all(turn, reply("a", inputs=100, sessiond={"recomputed_tokens": 90}))
    assert (turn.end.stats.recomputed_tokens, turn.end.stats.new_tokens) == (90, 10)


def test_text_that_came_without_deltas_is_shown_once():
    output = [{"type": "message", "content": [{"type": "output_text", "text": "whole reply"}]}]
    frames = reply("whole", output=output)
    turn = ChatTurn(sent_at_s=0.0)
    feed_all(turn, frames)
    assert turn.text == "whole reply"


def test_incomplete_turn_keeps_its_reason_and_moves_the_tip():
    turn = ChatTurn(sent_at_s=0.0)
    frames = reply("a", status="incomplete", incomplete_details={"reason": "cancelled"})
    feed_all(turn, frames)
    assert (turn.end.outcome, turn.end.detail, turn.end.tip) == (
        "incomplete",
        "cancelled",
        "resp_1",
    )


def test_failed_turn_leaves_the_tip():
    turn = ChatTurn(sent_at_s=0.0)
    error = {"code": "engine_restarted", "message": "the engine was restarted"}
    feed_all(turn, reply("a", status="failed", error=error))
    assert (turn.end.outcome, turn.end.code, turn.end.tip) == ("failed", "engine_restarted", None)


def test_error_event_ends_the_turn():
    turn = ChatTurn(sent_at_s=0.0)
    feed_all(turn, [{"type": "error", "error": {"code": "queue_full", "message": "full"}}])
    assert (turn.end.outcome, turn.end.code, turn.end.detail) == ("refused", "queue_full", "full")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "session.context_changed", "reason": "instructions", "tokens_before": 9},
        {"type": "session.degraded", "reason": "memory_pressure"},
        {"type": "session.waiting", "for": "slot", "position": 3, "since_ms": 70},
        {"type": "session.summary_overdue", "tokens": 700, "threshold": 600},
        {"type": "response.queued", "response": {}},
    ],
)
def test_what_the_server_does_to_the_context_is_never_silent(event):
    (part,) = ChatTurn(sent_at_s=0.0).feed(json.dumps(event), at_s=0.0)
    assert isinstance(part, Notice)
    assert part.text


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": 7},
        {"type": "response.future_event", "future": {"a": 1}},
        {"type": "response.output_text.delta", "delta": None},
        {"type": "response.output_text.delta"},
        {"type": "response.created", "response": "text"},
        {"type": "response.created", "response": {"id": 3, "conversation": "conv"}},
    ],
)
def test_unknown_or_oddly_shaped_events_are_passed_over(event):
    turn = ChatTurn(sent_at_s=0.0)
    assert turn.feed(json.dumps(event), at_s=0.0) == []
    assert turn.end is None


@pytest.mark.parametrize("response", [{}, {"usage": 4}, {"usage": {"input_tokens": True}}, "x"])
def test_an_end_without_numbers_is_still_an_end(response):
    turn = ChatTurn(sent_at_s=0.0)
    turn.feed(json.dumps({"type": "response.completed", "response": response}), at_s=1.0)
    assert turn.end.outcome == "completed"


@pytest.mark.parametrize("frame", ["{", "", "[]", "3", "null", b"\xff\xfe", '"text"'])
def test_a_frame_that_is_no_object_is_a_fault(frame):
    with pytest.raises(ProtocolFaultError):
        ChatTurn(sent_at_s=0.0).feed(frame, at_s=0.0)
