"""Which turns are refused before any work, and as what."""

import pytest

from engine.core.turn_admission import AdmissionView, refusal
from engine.ipc.messages import SubmitTurn

VIEW = {
    "context_tokens": 10,
    "busy": False,
    "turns": 0,
    "max_turns": 4,
    "total_blocks": 8,
    "block_size": 16,
    "max_model_len": 120,
}


def code(fields: dict[str, object], **command: object) -> str | None:
    submit = SubmitTurn(turn="t", session="s", **({"ids": [1] * 10} | command))
    refused = refusal(submit, AdmissionView(**(VIEW | fields)))
    return refused.code if refused else None


@pytest.mark.parametrize(
    ("fields", "command", "expected"),
    [
        ({}, {}, None),
        ({"context_tokens": None}, {}, "engine_restarted"),
        ({"busy": True}, {}, "internal_error"),
        ({"context_tokens": 0}, {"ids": []}, "internal_error"),
        ({"context_tokens": 0}, {"ids": [], "generate": False}, None),
        ({"context_tokens": 5}, {"ids": []}, None),
        ({}, {"max_output_tokens": 108}, None),
        ({}, {"max_output_tokens": 109}, "request_too_large"),
        ({}, {"max_output_tokens": 107, "close_ids": [1, 2]}, "request_too_large"),
        ({}, {"max_output_tokens": 109, "generate": False}, None),
        ({"context_tokens": 109}, {"max_output_tokens": 1}, None),
        ({"context_tokens": 110}, {"max_output_tokens": 1}, "request_too_large"),
        ({"context_tokens": 110}, {"generate": False}, None),
        ({"context_tokens": 111}, {"generate": False}, "request_too_large"),
        ({"turns": 3}, {}, None),
        ({"turns": 4}, {}, "queue_full"),
        ({"turns": 4, "is_first": True}, {}, None),
        ({"turns": 4, "is_first": True}, {"max_output_tokens": 109}, "request_too_large"),
        ({"turns": 4}, {"max_output_tokens": 109}, "request_too_large"),
    ],
)
def test_refusals(
    fields: dict[str, object], command: dict[str, object], expected: str | None
) -> None:
    assert code(fields, **command) == expected
