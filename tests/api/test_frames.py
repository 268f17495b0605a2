"""Frames beside requests, and any bytes at all: each gives a command or a refusal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.policies import SessionUpdate
from sessiond.api.protocol.requests import (
    NEUTRAL,
    NO_EFFECT,
    CancelFrame,
    CloseFrame,
    UpdateFrame,
    decode_create_body,
    decode_frame,
    lane_of,
)
from sessiond.domain import TurnRequest
from sessiond.errors import RequestError
from tests.api.decoding import code_of


def test_a_lane_is_known_even_if_the_rest_is_wrong():
    assert lane_of({"type": "nonsense", "stream_id": "lane-1"}) == "lane-1"
    assert lane_of({"stream_id": "no lane"}) is None
    assert lane_of({"stream_id": ["x"]}) is None
    assert lane_of({}) is None


def test_cancel_keeps_what_was_said_unless_told_otherwise():
    assert decode_frame({"type": "response.cancel"}) == CancelFrame(
        stream_id=None, response_id=None, keep=True
    )
    frame = decode_frame({"type": "response.cancel", "response_id": "resp_1", "keep": False})
    assert frame == CancelFrame(stream_id=None, response_id="resp_1", keep=False)


def test_update_says_what_is_to_change():
    frame = decode_frame({"type": "session.update", "session": "conv_1", "retention": "park"})
    assert frame == UpdateFrame(
        stream_id=None, session="conv_1", update=SessionUpdate(retention="park")
    )
    frame = decode_frame({"type": "session.update", "session": "c", "context_management": None})
    assert frame.update == SessionUpdate(policy=None)
    for wrong in ({}, {"retention": "keep"}, {"ttl_s": -1}, {"priority": "urgent"}):
        with pytest.raises(RequestError, match="must be"):
            decode_frame({"type": "session.update", "session": "conv_1"} | wrong)


def test_close_names_its_session():
    frame = decode_frame({"type": "session.close", "session": "conv_1"})
    assert frame == CloseFrame(stream_id=None, session="conv_1")
    with pytest.raises(RequestError, match=r"session must be .*got null"):
        decode_frame({"type": "session.close"})


@pytest.mark.parametrize("kind", ["response.steer", "session.open", "", None, 3, ["x"]])
def test_an_unknown_frame_is_refused_with_the_known_ones(kind):
    with pytest.raises(
        RequestError, match=r"response\.create, response\.resume, response\.cancel"
    ) as caught:
        decode_frame({"type": kind})
    assert caught.value.param == "type"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
known_names = st.sampled_from(
    sorted(
        NEUTRAL.keys()
        | NO_EFFECT
        | TurnRequest.__dataclass_fields__.keys()
        | {
            "type",
            "stream_id",
            "include",
            "stream",
            "response_id",
            "keep",
            "session",
            "role",
            "content",
        }
    )
)
frames = st.dictionaries(known_names | st.text(max_size=9), json_values, max_size=6)
frame_types = st.sampled_from(["response.create", "response.cancel", "session.close"])


@given(frames, frame_types | json_values)
def test_any_frame_gives_a_request_or_a_request_error(frame, kind):
    code = code_of(decode_frame, {**frame, "type": kind})
    assert code in {None, "invalid_value", "unsupported_parameter"}


@given(st.binary() | frames.map(lambda frame: json.dumps(frame).encode()))
def test_any_body_gives_a_request_or_a_request_error(body):
    code = code_of(decode_create_body, body)
    assert code in {None, "invalid_json", "invalid_value", "unsupported_parameter"}


@given(st.text())
def test_any_text_frame_gives_a_command_or_a_request_error(text):
    code = code_of(lambda: decode_frame(parse_object(text)))
    assert code in {None, "invalid_json", "invalid_value", "unsupported_parameter"}
