"""Responses over HTTP: JSON and events, errors, limits, and what a disconnect does."""

import asyncio
import json

import httpx
import openai
import pytest

from sessiond.domain import TextDelta, TurnBegun, TurnError, TurnFinished
from sessiond.errors import RequestError
from tests.api.schemas import strict, validate, validate_event
from tests.api.scripted import USAGE, ScriptedService, reply
from tests.harness.serving import gateway_of, serving


def client_of(served):
    return httpx.AsyncClient(base_url=served.http_url, trust_env=False, timeout=60)


def sdk_of(served):
    return openai.AsyncOpenAI(
        api_key="sk-any",
        base_url=f"{served.http_url}/v1",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


async def sse_events(response):
    text = (await response.aread()).decode()
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    events = []
    for block in blocks:
        kind, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {events[-1]['type']}"
    return events


async def test_a_response_as_json():
    service = ScriptedService(lambda _: reply("Hel", "lo"))
    async with serving(gateway_of(service)) as served, client_of(served) as http:
        response = await http.post("/v1/responses", json={"input": "hi"})
        assert response.status_code == 200
        body = response.json()
        validate(body, "Response")
        assert body["output"][0]["content"][0]["text"] == "Hello"
        assert body["status"] == "completed"
        assert response.headers["X-Session-Id"] == body["conversation"]["id"]


async def test_a_response_as_events():
    service = ScriptedService(lambda _: reply("Hel", "lo"))
    async with serving(gateway_of(service)) as served, client_of(served) as http:
        body = {"input": "hi", "stream": True}
        response = await http.post("/v1/responses", json=body, headers={"X_Session_ID": "mine"})
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["X-Session-Id"] == "mine"
        events = await sse_events(response)
        for event in events:
            validate_event(event)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.completed"


async def test_silence_is_broken_by_comments():
    """Field case T47."""
    gate = asyncio.Event()
    service = ScriptedService(lambda _: [TurnBegun(), gate, *reply("hi")[1:]])
    async with serving(gateway_of(service, heartbeat_s=0.02)) as served, client_of(served) as http:
        async with http.stream("POST", "/v1/responses", json={"stream": True}) as response:
            lines = response.aiter_lines()
            comments = 0
            while comments < 3:
                comments += (await anext(lines)).startswith(":")
            gate.set()
            rest = [line async for line in lines]
        assert "event: response.completed" in rest


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_request_cancels_its_turn_at_once(stream):
    """Field case T06: with metrics and the host check in front, the disconnect still arrives."""
    begun = asyncio.Event()

    def script(_):
        begun.set()
        return [TurnBegun(), TextDelta(text="x"), asyncio.Event()]

    service = ScriptedService(script)
    async with serving(gateway_of(service)) as served:
        request = json.dumps({"input": "hi", "stream": stream}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
            % (len(request), request)
        )
        await asyncio.wait_for(begun.wait(), 60)
        if stream:
            await reader.readuntil(b"output_text.delta")
        writer.close()
        await writer.wait_closed()
        await asyncio.wait_for(service.bound[0].cancelled.wait(), 60)
        assert service.ran[0].reasons == ["disconnected"]
        assert service.bound[0].keep is False


async def test_a_failed_turn_is_an_http_error_in_json_and_an_event_in_a_stream():
    error = TurnError(code="queue_timeout", message="waited too long")
    ending = TurnFinished(status="failed", text="", usage=USAGE, error=error)
    service = ScriptedService(lambda _: [TurnBegun(), ending])
    async with serving(gateway_of(service)) as served, client_of(served) as http:
        response = await http.post("/v1/responses", json={"input": "hi"})
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "queue_timeout"
        strict(response.json(), "ErrorResponse")
        response = await http.post("/v1/responses", json={"input": "hi", "stream": True})
        assert (await sse_events(response))[-1]["response"]["error"]["code"] == "queue_timeout"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_turn_that_failed_for_want_of_room_says_when_by_how_fast_turns_end(path):
    """It was a constant."""
    codes = ["queue_timeout", "queue_full", "engine_restarted", "internal_error"]
    failing = iter(codes * 2)

    def script(_):
        error = TurnError(code=next(failing), message="as the test wants")
        return [TurnFinished(status="failed", text="", usage=USAGE, error=error)]

    service = ScriptedService(script)
    body = {"model": "fake", "input": "hi"}
    if path.endswith("completions"):
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    async with serving(gateway_of(service)) as served, client_of(served) as http:
        for every_s, wait in ((7.0, "7"), (29.5, "30")):
            service.end_turn_every(every_s)
            answers = [await http.post(path, json=body) for _ in codes]
            assert [answer.json()["error"]["code"] for answer in answers] == codes
            waits = [answer.headers.get("Retry-After") for answer in answers]
            assert waits == [wait, wait, "1", None]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"\xff", "invalid_json"),
        (b'{"top_p": 3}', "invalid_value"),
        (b'{"tools": [{}]}', "unsupported_parameter"),
    ],
)
async def test_a_wrong_body_is_refused(body, code):
    async with serving(gateway_of(ScriptedService(lambda _: reply("x")))) as served:
        async with client_of(served) as http:
            response = await http.post("/v1/responses", content=body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == code
        strict(response.json(), "ErrorResponse")


async def test_refusals_of_the_service_carry_their_status_and_retry_after():
    service = ScriptedService(lambda _: reply("x"))
    service.bind_error = RequestError("queue_full", "full", retry_after_s=7)
    async with serving(gateway_of(service)) as served, client_of(served) as http:
        response = await http.post("/v1/responses", json={})
        assert (response.status_code, response.headers["Retry-After"]) == (429, "7")


async def test_a_body_over_the_limit_is_refused_unread():
    async def endless():
        while True:
            yield b"x" * 1024

    service = ScriptedService(lambda _: reply("x"))
    async with serving(gateway_of(service, max_body_bytes=4096)) as served:
        async with client_of(served) as http:
            response = await http.post("/v1/responses", content=b"x" * 5000)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "request_too_large"
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n1400\r\n" + b"x" * 5120 + b"\r\n")
        assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 413")
        writer.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/responses", 405),
        ("PUT", "/v1/responses", 405),
        ("POST", "/health/live", 405),
        ("DELETE", "/v1/sessions", 405),
    ],
)
async def test_unknown_paths_and_methods_are_json_errors(method, path, status):
    async with serving(gateway_of(ScriptedService(lambda _: reply("x")))) as served:
        async with client_of(served) as http:
            response = await http.request(method, path)
        assert response.status_code == status
        strict(response.json(), "ErrorResponse")
        if status == 405:
            assert response.headers["Allow"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v1/responses", "POST"),
        ("PATCH", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("PUT", "/v1/conversations/conv_1", "DELETE, GET, HEAD, POST"),
        ("OPTIONS", "/v1/sessions/conv_1/policy", "DELETE, PUT"),
    ],
)
async def test_a_wrong_method_is_told_all_that_the_path_has(method, path, allowed):
    async with serving(gateway_of(ScriptedService(lambda _: reply("x")))) as served:
        async with client_of(served) as http:
            response = await http.request(method, path)
        assert (response.status_code, response.headers["Allow"]) == (405, allowed)


async def test_a_fault_of_ours_is_a_500_without_its_inside(caplog):
    service = ScriptedService(lambda _: ZeroDivisionError("secret"))
    async with serving(gateway_of(service)) as served, client_of(served) as http:
        response = await http.post("/v1/responses", json={})
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "secret" not in response.text
    assert "secret" in caplog.text


async def test_the_sdk_reads_json_and_events():
    service = ScriptedService(lambda _: reply("Hel", "lo"))
    async with serving(gateway_of(service)) as served:
        sdk = sdk_of(served)
        response = await sdk.responses.create(model="fake", input="hi")
        assert response.output_text == "Hello"
        assert response.usage.input_tokens == 5
        async with sdk.responses.stream(model="fake", input="hi") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert kinds[-1] == "response.completed"
        assert final.output_text == "Hello"
        await sdk.close()


async def test_the_sdk_raises_its_own_errors():
    service = ScriptedService(lambda _: reply("x"))
    service.bind_error = RequestError("conversation_not_found", "no such conversation")
    async with serving(gateway_of(service)) as served:
        sdk = sdk_of(served)
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk.responses.create(model="fake", input="hi", conversation="conv_0")
        assert caught.value.code == "conversation_not_found"
        with pytest.raises(openai.BadRequestError):
            await sdk.responses.create(model="fake", input="hi", temperature=9)
        await sdk.close()


async def test_a_stream_that_nobody_reads_is_cancelled():
    endless = [TurnBegun(), *(TextDelta(text="x" * 10_000) for _ in range(3000)), asyncio.Event()]
    service = ScriptedService(lambda _: endless)
    async with serving(gateway_of(service, send_timeout_s=0.2)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
        writer.write(
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n"
        )
        writer.write(b'{"stream": true}')
        await reader.readuntil(b"response.created")
        while not service.ran[0].reasons:  # noqa: ASYNC110 -- the script counts
            await asyncio.sleep(0.005)
        assert service.ran[0].reasons == ["disconnected"]
        writer.close()
