"""The list of extensions says what is so: it is needed, complete and no longer than that."""

from typing import get_args

import pytest
from jsonschema import ValidationError

from sessiond.api.protocol.requests import _CREATE_KEYS, FRAME_TYPES
from sessiond.api.protocol.resources import ResponseState, response_object
from sessiond.domain import IncompleteReason, TurnError, TurnRequest, TurnUsage
from sessiond.errors import STATUS, ErrorCode
from tests.api.schemas import DOCUMENT, EXTENSIONS, strict, validate

SCHEMAS = DOCUMENT["components"]["schemas"]


def _response(**changes):
    state = {
        "response_id": "resp_1",
        "session_id": "conv_1",
        "message_id": "msg_1",
        "previous_response_id": None,
        "model": "m",
        "instructions": None,
        "created_at": 1.5,
        "request": TurnRequest(),
        "status": "incomplete",
        "text": "hi",
    }
    return response_object(ResponseState(**{**state, **changes}))


def test_a_response_without_extensions_is_standard_as_it_is():
    strict(_response(status="completed"), "Response")


@pytest.mark.parametrize("reason", get_args(IncompleteReason))
def test_each_incomplete_reason_is_standard_or_listed(reason):
    response = _response(reason=reason)
    validate(response, "Response")
    is_listed = reason in EXTENSIONS["values"]["incomplete_details.reason"]
    if is_listed:
        with pytest.raises(ValidationError):
            strict(response, "Response")
    else:
        strict(response, "Response")


@pytest.mark.parametrize("code", get_args(ErrorCode))
def test_each_error_code_is_standard_or_listed(code):
    response = _response(status="failed", text=None, error=TurnError(code=code, message="m"))
    validate(response, "Response")
    is_listed = code in EXTENSIONS["values"]["error.code"]
    if is_listed:
        with pytest.raises(ValidationError):
            strict(response, "Response")
    else:
        strict(response, "Response")


def test_every_listed_value_is_one_we_send():
    assert set(EXTENSIONS["values"]["incomplete_details.reason"]) < set(get_args(IncompleteReason))
    assert set(EXTENSIONS["values"]["error.code"]) < set(STATUS)


def test_the_listed_property_is_sent_and_is_not_standard():
    response = _response(usage=TurnUsage(new_tokens=3))
    assert EXTENSIONS["properties"] == {"response": ["sessiond"]}
    assert "sessiond" in response
    names = {name for part in SCHEMAS["Response"]["allOf"] for name in part.get("properties", {})}
    assert "sessiond" not in names


def test_request_fields_beyond_the_standard_are_exactly_the_listed_ones():
    standard = set(SCHEMAS["ResponsesClientEventResponseCreate"]["allOf"][0]["properties"])
    for name in ("CreateResponse", "CreateModelResponseProperties"):
        for part in SCHEMAS[name]["allOf"]:
            standard |= set(part.get("properties", {}))
    for name in ("ModelResponseProperties", "ResponseProperties"):
        standard |= set(SCHEMAS[name]["properties"])
    listed = {name for name in EXTENSIONS["request_fields"] if "." not in name}
    assert _CREATE_KEYS - standard == listed


def test_every_standard_request_field_is_decided_on():
    standard = set()
    for name in ("CreateResponse", "CreateModelResponseProperties"):
        for part in SCHEMAS[name]["allOf"]:
            standard |= set(part.get("properties", {}))
    for name in ("ModelResponseProperties", "ResponseProperties"):
        standard |= set(SCHEMAS[name]["properties"])
    assert standard <= _CREATE_KEYS


def test_frames_beyond_the_standard_are_exactly_the_listed_ones():
    assert set(FRAME_TYPES) - {"response.create"} == set(EXTENSIONS["request_events"])
