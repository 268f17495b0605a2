"""JSON is read strictly, and whatever comes in ends in a value or in one kind of error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.protocol.json_text import MAX_DEPTH, parse_object
from sessiond.errors import RequestError


def test_an_object_is_read():
    assert parse_object('{"a": [1, 2.5, "x", null, true]}') == {"a": [1, 2.5, "x", None, True]}


def test_whole_characters_by_surrogate_pairs_are_fine():
    assert parse_object('{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("nul", "not JSON"),
        ("[1]", "an array"),
        ("3", "a number"),
        ("null", "null"),
        ('"x"', "a string"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": 1e999}', "must fit in 64 bits"),
        ('{"a": ' + "9" * 5000 + "}", "5000 digits"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' occurs twice"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a": "\\udc00x"}', "surrogate"),
        ('{"\\uD800": 1}', "surrogate"),
        ('{"a": ' + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "}", "nested"),
        ('{"a": ' + "[" * 100_000, "nested"),
        (b"\xc3\x28", "not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON"),
    ],
)
def test_what_other_parsers_would_read_differently_is_refused(text, told):
    with pytest.raises(RequestError) as caught:
        parse_object(text)
    assert caught.value.code == "invalid_json"
    assert told in caught.value.message
    assert len(caught.value.message) < 300


def test_depth_up_to_the_limit_is_read():
    text = '{"a": ' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}"
    assert set(parse_object(text)) == {"a"}


def test_many_duplicate_keys_are_refused_in_linear_time():
    keys = ", ".join(f'"k{index}": 0' for index in range(50_000))
    with pytest.raises(RequestError):
        parse_object(f'{{{keys}, "k49999": 1}}')


@given(st.one_of(st.text(), st.binary()))
def test_any_text_gives_an_object_or_a_request_error(text):
    try:
        outcome = parse_object(text)
    except RequestError as error:
        outcome = error.code
    assert isinstance(outcome, dict) or outcome == "invalid_json"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_ordinary_json_survives_the_trip(value):
    try:
        text = json.dumps({"value": value}, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return
    assert parse_object(text) == {"value": value}
