"""Frames and bodies: what is used, what is neutral, what is refused and in which words."""

import pytest
from openai.types.responses import response_create_params

from sessiond.api.protocol.policies import policy_object
from sessiond.api.protocol.requests import (
    INCLUDABLE,
    NEUTRAL,
    NO_EFFECT,
    decode_create_body,
    decode_frame,
)
from sessiond.domain import UNSET, InputItem, PolicyChoice, TurnRequest
from sessiond.errors import RequestError
from tests.api.decoding import code_of, create, refusal


def test_an_empty_create_asks_for_nothing_special():
    assert create() == TurnRequest()


def test_a_string_is_one_user_message():
    assert create(input="hi").input == (InputItem(role="user", text="hi"),)


def test_messages_come_as_the_clients_write_them():
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "hel", "annotations": [], "logprobs": []},
                {"type": "output_text", "text": "lo", "annotations": []},
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "now in French"}]},
        {"role": "user", "content": []},
    ]
    assert create(input=items).input == (
        InputItem(role="developer", text="be brief"),
        InputItem(role="user", text="hi"),
        InputItem(role="assistant", text="hello"),
        InputItem(role="system", text="now in French"),
        InputItem(role="user", text=""),
    )


@pytest.mark.parametrize(
    ("items", "param", "code"),
    [
        (3, "input", "invalid_value"),
        ([3], "input[0]", "invalid_value"),
        ([{"role": "tool", "content": "x"}], "input[0].role", "invalid_value"),
        ([{"content": "x"}], "input[0].role", "invalid_value"),
        ([{"role": "user"}], "input[0].content", "invalid_value"),
        ([{"role": "user", "content": 3}], "input[0].content", "invalid_value"),
        ([{"role": "user", "content": ["x"]}], "input[0].content[0]", "invalid_value"),
        (
            [{"role": "user", "content": [{"type": "input_text"}]}],
            "input[0].content[0].text",
            "invalid_value",
        ),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            "input[0].content[0].type",
            "unsupported_parameter",
        ),
        (
            ["", {"type": "function_call_output", "call_id": "c", "output": "x"}],
            "input[0]",
            "invalid_value",
        ),
        (
            [{"type": "function_call_output", "call_id": "c", "output": "x"}],
            "input[0].type",
            "unsupported_parameter",
        ),
        (
            [{"type": "item_reference", "id": "msg_1"}],
            "input[0].type",
            "unsupported_parameter",
        ),
        (
            [{"role": "user", "content": "x", "mood": "sad"}],
            "input[0].mood",
            "unsupported_parameter",
        ),
    ],
)
def test_a_wrong_item_is_named(items, param, code):
    error = refusal(input=items)
    assert (error.param, error.code) == (param, code)


def test_instructions_tell_absent_null_and_empty_apart():
    assert create().instructions is UNSET
    assert create(instructions=None).instructions is None
    assert create(instructions="").instructions == ""


def test_a_conversation_is_named_by_id_or_object():
    assert create(conversation="conv_1").conversation == "conv_1"
    assert create(conversation={"id": "conv_1"}).conversation == "conv_1"
    assert create(conversation=None).conversation is None
    assert refusal(conversation={"name": "x"}).param == "conversation.name"
    assert refusal(conversation={}).param == "conversation.id"


def test_conversation_and_previous_response_exclude_each_other():
    error = refusal(conversation="conv_1", previous_response_id="resp_1")
    assert (error.code, error.status) == ("invalid_value", 400)


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_neutral_values_are_taken_and_change_nothing(name):
    for value in (*NEUTRAL[name].values, None):
        assert create(**{name: value}) == TurnRequest()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("moderation", {"model": "m"}),
        ("prompt", {"id": "p"}),
        ("prompt_cache_options", {"mode": "explicit"}),
        ("prompt_cache_retention", "24h"),
        ("reasoning", {"effort": "high"}),
        ("service_tier", "priority"),
        ("stream_options", {"include_obfuscation": True}),
        ("text", {"format": {"type": "json_object"}}),
        ("text", {"verbosity": "low"}),
        ("tool_choice", "required"),
        ("tools", [{"type": "function", "name": "f"}]),
        ("top_logprobs", 5),
        ("include", ["message.output_text.logprobs"]),
        ("frobnicate", 1),
    ],
)
def test_a_request_for_what_is_not_here_is_refused_by_name(name, value):
    error = refusal(**{name: value})
    assert error.code == "unsupported_parameter"
    assert error.param is not None
    assert error.param.partition("[")[0] == name
    assert name in error.message
    assert "must be" in error.message


def test_nulls_inside_neutral_objects_say_nothing():
    assert create(text={"format": {"type": "text"}, "verbosity": None}) == TurnRequest()
    assert create(reasoning={"effort": None, "summary": None}) == TurnRequest()


def test_fields_without_effect_are_taken():
    assert set(NO_EFFECT) == {
        "max_tool_calls",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "user",
    }
    pairs = {
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "parallel_tool_calls": True,
        "max_tool_calls": 3,
        "include": list(INCLUDABLE),
        "stream": True,
    }
    assert create(**pairs) == TurnRequest()


@pytest.mark.parametrize(
    ("pairs", "field", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": None}, "temperature", 1.0),
        ({"temperature": 2.0}, "temperature", 2.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_p": None}, "top_p", 1.0),
        ({"top_k": 40}, "top_k", 40),
        ({"top_k": None}, "top_k", 0),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"repetition_penalty": 1.1}, "repetition_penalty", 1.1),
        ({"frequency_penalty": -2}, "frequency_penalty", -2.0),
        ({"presence_penalty": None}, "presence_penalty", 0.0),
        ({"logit_bias": {"0": -100, "50256": 1.5}}, "logit_bias", ((0, -100.0), (50256, 1.5))),
        ({"logit_bias": {}}, "logit_bias", ()),
        ({"seed": 2**63 - 1}, "seed", 2**63 - 1),
        ({"max_output_tokens": 1}, "max_output_tokens", 1),
        ({"max_output_tokens": 162.0}, "max_output_tokens", 162),
        ({"max_output_tokens": None}, "max_output_tokens", None),
        ({"stop": "END"}, "stop", ("END",)),
        ({"stop": ["a", "b"]}, "stop", ("a", "b")),
        ({"truncation": "disabled"}, "truncation", "disabled"),
        ({"generate": False}, "generate", False),
        ({"metadata": {"deadline_ms": "1500"}}, "deadline_ms", 1500),
        (
            {"metadata": {"priority": "normal", "a": "b"}},
            "metadata",
            {"priority": "normal", "a": "b"},
        ),
    ],
)
def test_used_fields_arrive(pairs, field, value):
    assert getattr(create(**pairs), field) == value


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", 2.1, "0 to 2"),
        ("temperature", -1, "0 to 2"),
        ("temperature", "hot", "0 to 2"),
        ("temperature", True, "0 to 2"),
        ("top_p", 1.5, "0 to 1"),
        ("top_k", -1, "0 to"),
        ("top_k", 1.5, "0 to"),
        ("min_p", 2, "0 to 1"),
        ("repetition_penalty", 0, "0.1 to 2"),
        ("frequency_penalty", 3, "-2 to 2"),
        ("presence_penalty", "0", "-2 to 2"),
        ("logit_bias", {"x": 1}, "token ids"),
        ("logit_bias", {"01": 1}, "token ids"),
        ("logit_bias", {str(n): 0 for n in range(301)}, "up to 300"),
        ("seed", -1, "0 to"),
        ("seed", 2**63, "0 to"),
        ("seed", True, "0 to"),
        ("seed", 1e300, "0 to"),
        ("max_output_tokens", 0, "1 to"),
        ("max_output_tokens", 2**31, "1 to"),
        ("max_output_tokens", "9", "1 to"),
        ("generate", "no", "true or false"),
        ("truncation", "sometimes", "auto or disabled"),
        ("model", 3, "a string"),
        ("instructions", ["x"], "a string"),
        ("previous_response_id", 3, "a string"),
        ("stop", 3, "an array"),
        ("stop", ["x"] * 17, "up to 16"),
        ("stop", "", "non-empty"),
        ("metadata", [], "an object"),
        ("metadata", {str(index): "" for index in range(17)}, "up to 16"),
        ("metadata", {"k" * 65: ""}, "up to 64"),
        ("user", 3, "a string"),
        ("stream_id", "a b", "A-Z a-z"),
        ("stream_id", "", "A-Z a-z"),
        ("stream_id", 7, "A-Z a-z"),
        ("include", "all", "an array"),
    ],
)
def test_values_out_of_range_are_refused_with_name_value_and_range(name, value, allowed):
    error = refusal(**{name: value})
    assert error.code == "invalid_value"
    assert error.param is not None
    assert error.param.partition("[")[0] == name
    assert allowed in error.message
    assert name in error.message


@pytest.mark.parametrize(
    ("metadata", "param", "code"),
    [
        ({"a": 1}, "metadata.a", "invalid_value"),
        ({"a": "x" * 513}, "metadata.a", "invalid_value"),
        ({"deadline_ms": "soon"}, "metadata.deadline_ms", "invalid_value"),
        ({"deadline_ms": "0"}, "metadata.deadline_ms", "invalid_value"),
        ({"deadline_ms": "²"}, "metadata.deadline_ms", "invalid_value"),
        ({"deadline_ms": "9" * 400}, "metadata.deadline_ms", "invalid_value"),
        ({"priority": "urgent"}, "metadata.priority", "invalid_value"),
    ],
)
def test_wrong_metadata_is_named(metadata, param, code):
    error = refusal(metadata=metadata)
    assert (error.param, error.code) == (param, code)


def test_a_whole_number_of_a_policy_may_be_written_with_a_point():
    sent = {"type": "last_turns", "turns": 5.0, "trim_to": 0.5}
    policy = create(context_management=[sent]).policy
    assert policy == PolicyChoice(type="last_turns", parameters={"turns": 5, "trim_to": 0.5})
    assert type(policy.parameters["turns"]) is int


def test_a_context_policy_is_one_entry_with_its_parameters():
    assert create(context_management=[]).policy is None
    assert create(context_management=None).policy is None
    policy = create(context_management=[{"type": "compaction", "compact_threshold": 1000}]).policy
    assert policy == PolicyChoice(type="compaction", parameters={"compact_threshold": 1000})
    shifted = {"type": "last_turns", "turns": 5, "trim_to": 0.5, "fidelity": "shifted"}
    assert create(context_management=[shifted]).policy == PolicyChoice(
        type="last_turns", parameters={"turns": 5, "trim_to": 0.5}, fidelity="shifted"
    )
    end = {"type": "none", "oversize": "keep_end"}
    assert create(context_management=[end]).policy == PolicyChoice(type="none", oversize="keep_end")
    pressed = PolicyChoice(type="last_turns", under_pressure="trim_history")
    assert create(context_management=[policy_object(pressed)]).policy == pressed


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("none", "context_management"),
        ([{"type": "none"}, {"type": "none"}], "context_management"),
        (["none"], "context_management[0]"),
        ([{}], "context_management[0].type"),
        ([{"type": "none", "fidelity": "roughly"}], "context_management[0].fidelity"),
        ([{"type": "none", "oversize": "keep_start"}], "context_management[0].oversize"),
        ([{"type": "none", "under_pressure": "trim"}], "context_management[0].under_pressure"),
        ([{"type": "last_turns", "turns": True}], "context_management[0].turns"),
        ([{"type": "last_turns", "turns": [5]}], "context_management[0].turns"),
        ([{f"p{number}": 1 for number in range(17)}], "context_management[0]"),
    ],
)
def test_a_context_policy_that_can_not_be_read_is_named(value, param):
    error = refusal(context_management=value)
    assert (error.code, error.param) == ("invalid_value", param)
    assert "must be" in error.message


def test_a_body_has_no_envelope():
    body = decode_create_body(b'{"input": "hi", "stream": true}')
    assert body.stream
    assert body.request == create(input="hi")
    with pytest.raises(RequestError, match="stream_id"):
        decode_create_body(b'{"stream_id": "x"}')
    with pytest.raises(RequestError, match="type"):
        decode_create_body(b'{"type": "response.create"}')


def test_every_field_of_the_sdk_is_known_or_refused_in_words():
    # fields that a newer SDK has and the schemas have not: refused, as is every unknown name
    names = set(response_create_params.ResponseCreateParamsBase.__annotations__)
    outcomes = {
        name: code_of(decode_frame, {"type": "response.create", name: None}) for name in names
    }
    refused = {name for name, code in outcomes.items() if code is not None}
    assert refused == names & {"access_programs", "background_options", "image"}
    assert {outcomes[name] for name in refused} <= {"unsupported_parameter"}
