"""`/v1/chat/completions`: the objects, the errors, the client."""

import asyncio
import itertools
import json

import httpx
import openai
import pytest

from sessiond.api.protocol import chat
from tests.api.hooks import Cancels, Steps
from tests.api.schemas import DOCUMENT, strict

USER = {"role": "user", "content": "hi"}


def http_of(running):
    return httpx.AsyncClient(base_url=running.served.http_url, trust_env=False, timeout=60)


def sdk_of(running):
    return openai.AsyncOpenAI(
        api_key="sk-any",
        base_url=f"{running.served.http_url}/v1",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


def chunks_of(text):
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def without_nulls(chunk):
    """The schema says `nullable`, which JSON schema has no word for."""
    choices = [
        {"finish_reason": "stop"} | {k: value for k, value in choice.items() if value is not None}
        for choice in chunk["choices"]
    ]
    return {key: value for key, value in {**chunk, "choices": choices}.items() if value is not None}


async def test_a_completion_is_standard(stack):
    async with stack() as running, http_of(running) as http:
        running.model.script([*b"Hello", 256])
        answer = await http.post("/v1/chat/completions", json={"model": "fake", "messages": [USER]})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        strict(body, "CreateChatCompletionResponse")
        assert body["choices"][0]["message"]["content"] == "Hello"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["total_tokens"] == (
            body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
        )
        stored = (await http.get(f"/v1/responses/{body['id']}")).json()
        assert stored["conversation"]["id"] == answer.headers["X-Session-Id"]
        await running.idle()


@pytest.mark.parametrize("include_usage", [True, False])
async def test_chunks_are_standard_and_tell_the_same(stack, include_usage):
    async with stack() as running, http_of(running) as http:
        running.model.script([*b"Hello", 256])
        body = {"messages": [USER], "stream": True}
        if include_usage:
            body["stream_options"] = {"include_usage": True}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        chunks = chunks_of(answer.text)
        for chunk in chunks:
            strict(without_nulls(chunk), "CreateChatCompletionStreamResponse")
        told = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        assert "".join(choice["delta"].get("content") or "" for choice in told) == "Hello"
        assert [choice["finish_reason"] for choice in told] == [None] * (len(told) - 1) + ["stop"]
        assert told[0]["delta"]["role"] == "assistant"
        usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        assert len(usages) == include_usage
        assert (chunks[-1]["choices"] == []) == include_usage
        assert len({chunk["id"] for chunk in chunks}) == 1
        await running.idle()


async def test_the_sdk_resends_its_history_and_only_what_is_new_is_computed(stack):
    async with stack() as running:
        messages = [{"role": "system", "content": "be good " * 10}]
        usages = []
        async with sdk_of(running) as sdk:
            for number in range(4):
                messages.append({"role": "user", "content": f"message {number}"})
                done = await sdk.chat.completions.create(
                    model="fake", messages=messages, temperature=0, max_tokens=20
                )
                message = done.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                usages.append(done.usage)
            stream = await sdk.chat.completions.create(
                model="fake",
                messages=[*messages, {"role": "user", "content": "last"}],
                stream=True,
                stream_options={"include_usage": True},
                max_completion_tokens=20,
            )
            chunks = [chunk async for chunk in stream]
            usages.append(chunks[-1].usage)
        for before, after in itertools.pairwise(usages):
            assert after.prompt_tokens_details.cached_tokens >= (
                before.prompt_tokens + before.completion_tokens - 16
            )
        await running.idle()


async def test_a_reply_that_is_cut_says_so(stack):
    async with stack() as running, http_of(running) as http:
        running.model.script([120] * 10)
        for name in ("max_tokens", "max_completion_tokens"):
            answer = await http.post(
                "/v1/chat/completions", json={"messages": [USER], name: 5, "seed": 1}
            )
            choice = answer.json()["choices"][0]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "x" * 5)
        running.model.script([*b"one STOP two", 256])
        answer = await http.post(
            "/v1/chat/completions",
            json={"messages": [USER, {"role": "user", "content": "on"}], "stop": [" STOP"]},
        )
        assert answer.json()["choices"][0]["message"]["content"] == "one"
        await running.idle()


async def test_parts_of_text_are_taken_together(stack):
    async with stack() as running, http_of(running) as http:
        parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
        first = await http.post("/v1/chat/completions", json={"messages": [USER]})
        text = first.json()["choices"][0]["message"]["content"]
        answer = await http.post(
            "/v1/chat/completions",
            json={
                "messages": [
                    {"role": "user", "content": parts},
                    {"role": "assistant", "content": text, "refusal": None, "annotations": []},
                    USER,
                ]
            },
        )
        assert answer.headers["X-Session-Id"] == first.headers["X-Session-Id"]
        await running.idle()


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": None}, "invalid_value", "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "invalid_value", "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "unsupported_parameter",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{**USER, "name": "ann"}]},
            "unsupported_parameter",
            "messages[0].name",
        ),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"logprobs": True}, "unsupported_parameter", "logprobs"),
        ({"top_logprobs": 3}, "unsupported_parameter", "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
        ({"frequency_penalty": 2.5}, "invalid_value", "frequency_penalty"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        (
            {"stream": True, "stream_options": {"usage": True}},
            "unsupported_parameter",
            "stream_options.usage",
        ),
        ({"input": "hi"}, "unsupported_parameter", "input"),
        ({"model": "other"}, "model_not_found", "model"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(stack, fields, code, param):
    async with stack() as running, http_of(running) as http:
        answer = await http.post("/v1/chat/completions", json={"messages": [USER], **fields})
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (code, param)
        assert answer.status_code in {400, 404}
        await running.idle()


def test_every_field_of_the_api_is_known_or_refused_by_name():
    def names(schema):
        schema = DOCUMENT["components"]["schemas"][schema] if isinstance(schema, str) else schema
        found = set(schema.get("properties", {}))
        for part in schema.get("allOf", []):
            name = part.get("$ref", "").rpartition("/")[2]
            found |= names(name or part)
        return found

    assert names("CreateChatCompletionRequest") - chat.BODY_KEYS == set()


async def test_neutral_values_are_taken(stack):
    async with stack() as running, http_of(running) as http:
        answer = await http.post(
            "/v1/chat/completions",
            json={
                "messages": [USER],
                "n": 1,
                "frequency_penalty": 0,
                "presence_penalty": 0.0,
                "logprobs": False,
                "tools": [],
                "response_format": {"type": "text"},
                "user": "me",
                "parallel_tool_calls": True,
                "metadata": {"a": "b"},
                "store": False,
                "logit_bias": {},
            },
        )
        assert answer.status_code == 200, answer.text
        assert (await http.get(f"/v1/responses/{answer.json()['id']}")).status_code == 404
        await running.idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cuts_its_completion(stack, stream):
    async with stack() as running:
        running.model.script([120] * 4000)
        steps, cancels = Steps(running), Cancels(running)
        body = {"messages": [USER], "stream": stream, "max_tokens": 2000}
        async with http_of(running) as http:
            asked = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            while running.model.steps == 0:  # noqa: ASYNC110 -- the engine's thread counts
                await asyncio.sleep(0.001)
            asked.cancel()
            await asyncio.wait_for(cancels.told.wait(), 60)
        steps.release()
        await running.idle()
        assert running.model.steps <= 2
