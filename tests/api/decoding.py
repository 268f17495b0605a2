"""Requests by their fields, and what wrong ones are refused with."""

import pytest

from sessiond.api.protocol.requests import CreateFrame, decode_frame
from sessiond.errors import RequestError


def create(**pairs):
    frame = decode_frame({"type": "response.create", **pairs})
    assert isinstance(frame, CreateFrame)
    return frame.request


def refusal(**pairs):
    with pytest.raises(RequestError) as caught:
        create(**pairs)
    return caught.value


def code_of(call, *values):
    """The code that a call is refused with; None if it is not. The message can be sent."""
    refused = None
    try:
        call(*values)
    except RequestError as error:
        refused = error
    assert refused is None or len(refused.message.encode()) < 2000
    return refused and refused.code
