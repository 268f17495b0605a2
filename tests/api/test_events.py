"""The events of a turn: their order, their numbers, their shapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.protocol.events import (
    TERMINAL,
    ResponseEncoder,
    error_event,
    session_closed_event,
)
from sessiond.domain import (
    ContextChanged,
    SessionDegraded,
    SessionWaiting,
    SummaryOverdue,
    TextDelta,
    TurnAccepted,
    TurnBegun,
    TurnError,
    TurnFinished,
    TurnQueued,
    TurnRequest,
    TurnUsage,
)
from sessiond.errors import RequestError
from tests.api.schemas import strict, validate, validate_event

USAGE = TurnUsage(
    reused_tokens=32,
    recomputed_tokens=4,
    new_tokens=8,
    output_tokens=2,
    kv_bytes=4096,
    blocks=3,
    queue_ms=0.5,
    ttft_ms=12.0,
    total_ms=20.0,
)
CHANGED = ContextChanged(
    session_id="conv_1", reason="instructions", dropped_turns=0, tokens_before=40, tokens_after=12
)


def accepted(**changes):
    entries = {
        "response_id": "resp_1",
        "session_id": "conv_1",
        "message_id": "msg_1",
        "previous_response_id": "resp_0",
        "model": "m",
        "instructions": "be brief",
        "created_at": 1700000000.25,
        "request": TurnRequest(metadata={"a": "b"}, max_output_tokens=20),
    }
    return TurnAccepted(**{**entries, **changes})


def play(entries, stream_id=None, **changes):
    encoder = ResponseEncoder(accepted(**changes), stream_id)
    return [encoder.created(), *(event for entry in entries for event in encoder.encode(entry))]


def kinds(events):
    return [event["type"] for event in events]


def finished(text="Hello", status="completed", **changes):
    return TurnFinished(status=status, text=text, usage=USAGE, **changes)


def test_a_reply_has_all_its_events_in_order():
    events = play(
        [TurnQueued(), TurnBegun(), TextDelta(text="Hel"), TextDelta(text="lo"), finished()]
    )
    assert kinds(events) == [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(11))


def test_the_terminal_response_tells_what_the_turn_cost():
    response = play([TurnBegun(), TextDelta(text="Hello"), finished()])[-1]["response"]
    assert response["usage"] == {
        "input_tokens": 44,
        "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 46,
    }
    assert response["sessiond"] == {
        "reused_tokens": 32,
        "restored_tokens": 0,
        "recomputed_tokens": 4,
        "restored_from": "device",
        "kv_bytes": 4096,
        "blocks": 3,
        "context": "full",
        "fidelity": "exact",
        "summary_tokens": 0,
        "queue_ms": 0.5,
        "ttft_ms": 12.0,
        "total_ms": 20.0,
    }
    assert response["conversation"] == {"id": "conv_1"}
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert (response["metadata"], response["created_at"]) == ({"a": "b"}, 1700000000)


def test_the_stream_id_stands_on_every_event():
    entries = [TurnQueued(), TurnBegun(), CHANGED, TextDelta(text="Hello"), finished()]
    assert {event["stream_id"] for event in play(entries, "lane-1")} == {"lane-1"}
    assert not any("stream_id" in event for event in play(entries))


def test_prefilling_only_completes_without_output():
    events = play([TurnBegun(), finished("")], request=TurnRequest(generate=False))
    assert kinds(events) == ["response.created", "response.in_progress", "response.completed"]
    assert events[-1]["response"]["output"] == []


def test_a_model_that_says_nothing_gives_an_empty_message():
    events = play([TurnBegun(), finished("")])
    assert "response.output_text.delta" not in kinds(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""
    assert kinds(events)[2:4] == ["response.output_item.added", "response.content_part.added"]


def test_a_cut_reply_is_incomplete_with_its_reason():
    cut = finished("Hel", "incomplete", reason="cancelled")
    events = play([TurnBegun(), TextDelta(text="Hel"), cut])
    assert kinds(events)[-1] == "response.incomplete"
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "cancelled"}
    assert response["output"][0]["status"] == "incomplete"


def test_a_turn_cancelled_before_its_first_token_has_no_output():
    events = play([TurnQueued(), finished("", "incomplete", reason="cancelled")])
    assert kinds(events) == ["response.created", "response.queued", "response.incomplete"]
    assert events[-1]["response"]["output"] == []


def test_a_failed_turn_tells_the_code():
    error = TurnError(code="engine_restarted", message="the engine was lost")
    events = play([TurnBegun(), TextDelta(text="Hel"), finished("", "failed", error=error)])
    assert kinds(events)[-1] == "response.failed"
    response = events[-1]["response"]
    assert response["error"] == {"code": "engine_restarted", "message": "the engine was lost"}
    assert (response["status"], response["output"]) == ("failed", [])


def test_text_that_came_with_the_ending_is_still_sent_as_a_delta():
    events = play([TurnBegun(), TextDelta(text="Hel"), finished("Hello")])
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert deltas == ["Hel", "lo"]


def test_a_changed_context_shares_the_numbers_and_is_told_at_the_end():
    events = play([CHANGED, TurnBegun(), TextDelta(text="Hello"), finished()])
    assert kinds(events)[:3] == [
        "response.created",
        "session.context_changed",
        "response.in_progress",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[1] == {
        "type": "session.context_changed",
        "sequence_number": 1,
        "session": "conv_1",
        "reason": "instructions",
        "dropped_turns": 0,
        "tokens_before": 40,
        "tokens_after": 12,
        "context": "full",
        "fidelity": "exact",
    }


def test_what_a_turn_waits_for_shares_the_numbers_too():
    wait = SessionWaiting(
        session_id="conv_1", response_id="resp_1", cause="slot", position=3, since_ms=70
    )
    events = play([TurnQueued(), wait, TurnBegun(), finished()])
    assert kinds(events)[:4] == [
        "response.created",
        "response.queued",
        "session.waiting",
        "response.in_progress",
    ]
    assert events[2] == {
        "type": "session.waiting",
        "sequence_number": 2,
        "session": "conv_1",
        "response_id": "resp_1",
        "for": "slot",
        "position": 3,
        "since_ms": 70,
    }


def test_an_overdue_summary_is_told():
    events = play([SummaryOverdue(session_id="conv_1", tokens=700, threshold=600), finished()])
    assert events[1] == {
        "type": "session.summary_overdue",
        "sequence_number": 1,
        "session": "conv_1",
        "tokens": 700,
        "threshold": 600,
    }


def test_pressure_shares_the_numbers_too():
    degraded = SessionDegraded(session_id="conv_1", step="preempt")
    events = play([TurnBegun(), TextDelta(text="Hel"), degraded, TextDelta(text="lo"), finished()])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[5] == {
        "type": "session.degraded",
        "sequence_number": 5,
        "session": "conv_1",
        "step": "preempt",
        "reason": "memory_pressure",
    }


def test_an_error_event_is_nested_and_standard():
    error = RequestError("queue_full", "too much waits", param=None, retry_after_s=3)
    event = error_event(error, "lane-1")
    assert event == {
        "type": "error",
        "status": 429,
        "stream_id": "lane-1",
        "error": {
            "type": "rate_limit_error",
            "code": "queue_full",
            "param": None,
            "message": "too much waits",
            "headers": {"retry-after": "3"},
        },
    }
    strict(event, "ResponseWsError")


def test_a_closed_session_is_told():
    assert session_closed_event("conv_1", None) == {"type": "session.closed", "session": "conv_1"}


endings = st.one_of(
    st.builds(finished, text=st.just("")),
    st.builds(
        finished,
        text=st.just(""),
        status=st.just("incomplete"),
        reason=st.sampled_from(["max_output_tokens", "cancelled", "deadline", "context_length"]),
    ),
    st.builds(
        finished,
        text=st.just(""),
        status=st.just("failed"),
        error=st.just(TurnError(code="internal_error", message="m")),
    ),
)


@given(
    queued=st.booleans(),
    begun=st.booleans(),
    changed=st.booleans(),
    deltas=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5),
    ending=endings,
    stream_id=st.sampled_from([None, "lane"]),
    generate=st.booleans(),
)
def test_whatever_happens_the_events_are_standard(
    *, queued, begun, changed, deltas, ending, stream_id, generate
):
    deltas = deltas if begun and generate else []
    text = "".join(deltas) if ending.status != "failed" else ""
    ending = TurnFinished(
        status=ending.status, text=text, usage=USAGE, reason=ending.reason, error=ending.error
    )
    entries = [
        *([TurnQueued()] if queued else []),
        *([TurnBegun()] if begun else []),
        *([CHANGED] if changed else []),
        *(TextDelta(text=delta) for delta in deltas),
        ending,
    ]
    events = play(entries, stream_id, request=TurnRequest(generate=generate))
    for event in events:
        validate_event(event)
    validate(events[-1]["response"], "Response")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [kind for kind in kinds(events) if kind in TERMINAL] == [kinds(events)[-1]]
    sent = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    done = [e["text"] for e in events if e["type"] == "response.output_text.done"]
    assert done in ([], [sent])


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_the_encoder_knows_when_it_is_over(status):
    encoder = ResponseEncoder(accepted(), None)
    assert not encoder.finished
    list(encoder.encode(finished("", status)))
    assert encoder.finished
