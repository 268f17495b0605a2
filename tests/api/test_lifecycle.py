"""What becomes of sessions and turns, over the wire."""

import asyncio
import json
import re
import threading

import httpx
import openai

from sessiond.api.limits import GatewayLimits
from sessiond.api.turn_stream import EventStream
from sessiond.domain import TextDelta, TurnAccepted, TurnRequest
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.turn import EventLog, LogReplay
from tests.api.hooks import Cancels, Steps
from tests.api.schemas import validate, validate_event


def http_of(running):
    return httpx.AsyncClient(base_url=running.served.http_url, trust_env=False, timeout=60)


async def said(http, text, **fields):
    answer = await http.post("/v1/responses", json={"input": text, **fields})
    assert answer.status_code == 200, answer.text
    validate(answer.json(), "Response")
    return answer.json()


async def test_a_session_is_forked_and_rewound_over_http(stack):
    async with stack() as running, http_of(running) as http:
        first = await said(http, "hi")
        session = first["conversation"]["id"]
        await said(http, "on", conversation=session)
        fork = await http.post(f"/v1/sessions/{session}/fork", json={"response_id": first["id"]})
        assert fork.status_code == 200
        assert fork.json()["id"] != session
        assert {turn["response_id"] for turn in fork.json()["turns"]} == {first["id"]}
        whole = (await http.post(f"/v1/sessions/{session}/fork")).json()
        assert len(whole["turns"]) > len(fork.json()["turns"])
        rewound = await http.post(
            f"/v1/sessions/{session}/reset", json={"response_id": first["id"]}
        )
        assert rewound.json()["turns"] == fork.json()["turns"]
        later = await said(http, "again", previous_response_id=first["id"])
        assert later["conversation"]["id"] == session
        wrong = await http.post(f"/v1/sessions/{session}/fork", json={"response_id": "resp_x"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (404, "response_id")
        wrong = await http.post(f"/v1/sessions/{session}/reset", json={"response": "resp_x"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "response")
        await running.idle()


async def test_a_turn_in_the_background_is_answered_at_once_and_followed_by_its_id(stack):
    async with stack() as running, http_of(running) as http:
        running.model.gate = threading.Event()
        begun = await said(http, "hi", background=True)
        assert (begun["status"], begun["background"]) == ("in_progress", True)
        seen = (await http.get(f"/v1/responses/{begun['id']}")).json()
        assert (seen["status"], seen["background"]) == ("in_progress", True)
        running.model.gate.set()
        while seen["status"] == "in_progress":
            seen = (await http.get(f"/v1/responses/{begun['id']}")).json()
        assert seen["status"] == "completed"
        validate(seen, "Response")
        await running.idle()


async def test_a_turn_in_the_background_is_cancelled_by_its_id(stack):
    async with stack() as running, http_of(running) as http:
        running.model.script([120] * 4000)
        steps, cancels = Steps(running), Cancels(running)
        begun = await said(http, "hi", background=True, max_output_tokens=2000)
        cancel = asyncio.create_task(http.post(f"/v1/responses/{begun['id']}/cancel"))
        await cancels.told.wait()
        steps.release()
        seen = (await cancel).json()
        assert (seen["status"], seen["incomplete_details"]) == (
            "incomplete",
            {"reason": "cancelled"},
        )
        await running.idle()


async def test_background_and_not_stored_exclude_each_other(stack):
    async with stack() as running, http_of(running) as http:
        wrong = await http.post(
            "/v1/responses", json={"input": "hi", "background": True, "store": False}
        )
        assert wrong.status_code == 400
        message = wrong.json()["error"]["message"]
        assert "background=true" in message
        assert "store must be true" in message


async def test_a_response_that_is_not_stored_is_not_found_afterwards(stack):
    async with stack() as running, http_of(running) as http:
        response = await said(http, "hi", store=False)
        assert (response["status"], response["store"]) == ("completed", False)
        for path in (f"responses/{response['id']}", f"sessions/{response['conversation']['id']}"):
            assert (await http.get(f"/v1/{path}")).status_code == 404
        await running.idle()


async def events_of(http, response_id, starting_after=None):
    """What is told again over HTTP."""
    params = {"stream": "true"}
    if starting_after is not None:
        params["starting_after"] = starting_after
    answer = await http.get(f"/v1/responses/{response_id}", params=params)
    assert answer.status_code == 200, answer.text
    blocks = [block for block in answer.text.split("\n\n") if block.startswith("event:")]
    events = [json.loads(block.split("\n")[1].removeprefix("data: ")) for block in blocks]
    for event in events:
        validate_event(event)
    return events


async def hear(ws, *kinds):
    """Events to the first of these kinds."""
    events = []
    while not events or events[-1]["type"] not in kinds:
        events.append(json.loads(await asyncio.wait_for(ws.recv(), 60)))
    return events


TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


async def send(ws, kind, **pairs):
    await ws.send(json.dumps({"type": kind, **pairs}))


async def test_a_response_is_told_again_from_every_number_without_a_gap(stack):
    async with stack() as running, http_of(running) as http:
        async with running.served.connect() as ws:
            await send(ws, "response.create", input="hi", stream_id="a")
            first = await hear(ws, *TERMINAL)
            name = first[-1]["response"]["id"]
            for after in range(-1, len(first)):
                if after >= 0:
                    await send(ws, "response.resume", response_id=name, starting_after=after)
                else:
                    await send(ws, "response.resume", response_id=name)
                if after == len(first) - 1:
                    await send(ws, "response.create", input="none told")
                    assert (await hear(ws, "response.created"))[0]["sequence_number"] == 0
                    await hear(ws, *TERMINAL)
                    continue
                again = [dict(event, stream_id="a") for event in await hear(ws, *TERMINAL)]
                assert again == first[after + 1 :]
        without = [{k: v for k, v in event.items() if k != "stream_id"} for event in first]
        assert await events_of(http, name) == without
        for after in range(len(first)):
            assert await events_of(http, name, after) == without[after + 1 :]
        await running.idle()


async def test_t47_a_lost_client_resumes_a_background_turn_by_its_number(stack):
    async with stack() as running, http_of(running) as http:
        running.model.script([72, 105, 33, 72, 105, 33, 256])
        gate = running.model.gate = threading.Semaphore(3)
        gate.wait = lambda timeout: gate.acquire(timeout=timeout)
        async with running.served.connect() as ws:
            await send(ws, "response.create", input="hi", background=True)
            early = await hear(ws, "response.output_text.delta")
        name = early[0]["response"]["id"]
        async with running.served.connect() as ws:
            number = early[-1]["sequence_number"]
            await send(ws, "response.resume", response_id=name, starting_after=number)
            followed = asyncio.create_task(events_of(http, name, starting_after=number))
            gate.release(100)
            rest = await hear(ws, *TERMINAL)
            assert await followed == rest
        numbers = [event["sequence_number"] for event in early + rest]
        assert numbers == list(range(len(numbers)))
        text = "".join(event.get("delta", "") for event in early + rest)
        assert text == rest[-1]["response"]["output"][0]["content"][0]["text"] == "Hi!Hi!"
        await running.idle()


async def test_the_sdk_follows_a_response_by_its_id(stack):
    async with stack() as running, http_of(running) as http:
        first = await said(http, "hi")
        sdk = openai.AsyncOpenAI(
            api_key="sk-any",
            base_url=f"{running.served.http_url}/v1",
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        )
        async with sdk:
            stream = await sdk.responses.retrieve(first["id"], stream=True, starting_after=1)
            numbers = [event.sequence_number async for event in stream]
        assert numbers == list(range(2, 2 + len(numbers)))
        await running.idle()


async def test_past_the_window_what_is_still_kept_is_named(stack):
    limits = ServiceLimits(http_hold_s=0.05, reap_every_s=0.02, replay_events=4)
    async with stack(service_limits=limits) as running, http_of(running) as http:
        running.model.script([*b"abcdefghijkl", 256])
        gate = running.model.gate = threading.Semaphore(0)
        gate.wait = lambda timeout: gate.acquire(timeout=timeout)
        async with running.served.connect() as ws:
            await send(ws, "response.create", input="hi")
            first = await hear(ws, "response.created")
            while first[-1]["type"] not in TERMINAL:
                gate.release()
                first += await hear(ws, *TERMINAL, "response.output_text.delta")
                if first[-1].get("delta", "").endswith("l"):
                    gate.release(10)
            name = first[-1]["response"]["id"]
            refused = await http.get(
                f"/v1/responses/{name}", params={"stream": "true", "starting_after": 3}
            )
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, "starting_after")
            kept = int(re.search(r"must be (\d+) or more", error["message"])[1])
            assert await events_of(http, name, kept) == first[kept + 1 :]
            assert (await http.get(f"/v1/responses/{name}?stream=true")).status_code == 400
            await send(ws, "response.resume", response_id=name, stream_id="x")
            event = (await hear(ws, *TERMINAL))[-1]
            assert (event["type"], event["stream_id"]) == ("error", "x")
        assert (await http.get(f"/v1/responses/{name}")).json() == first[-1]["response"]
        await running.idle()


async def test_a_stored_response_is_told_whole_and_only_so(stack):
    limits = ServiceLimits(http_hold_s=0.05, reap_every_s=0.02, replay_memory_bytes=0)
    async with stack(service_limits=limits) as running, http_of(running) as http:
        first = await said(http, "hi")
        events = await events_of(http, first["id"])
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (events[0]["type"], events[-1]["response"]) == ("response.created", first)
        assert await events_of(http, first["id"], 0) == events[1:]
        refused = await http.get(
            f"/v1/responses/{first['id']}", params={"stream": "true", "starting_after": 2}
        )
        assert refused.json()["error"]["param"] == "starting_after"
        await running.idle()


async def test_wrong_ways_to_ask_are_refused_by_name(stack):
    async with stack() as running, http_of(running) as http, running.served.connect() as ws:
        first = await said(http, "hi")
        for query, param in (
            ("stream=maybe", "stream"),
            ("stream=true&starting_after=x", "starting_after"),
            ("stream=true&starting_after=-1", "starting_after"),
            ("starting_after=1", "starting_after"),
        ):
            refused = await http.get(f"/v1/responses/{first['id']}?{query}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        for frame, code in (
            ({"response_id": "resp_none"}, "previous_response_not_found"),
            ({"response_id": first["id"], "starting_after": "1"}, "invalid_value"),
            ({"response_id": first["id"], "after": 1}, "unsupported_parameter"),
            ({}, "invalid_value"),
        ):
            await send(ws, "response.resume", **frame)
            assert (await hear(ws, *TERMINAL))[-1]["error"]["code"] == code
        await running.idle()


async def test_a_request_that_is_sent_again_gets_the_same_response(stack):
    async with stack() as running, http_of(running) as http:
        key = {"Idempotency-Key": "try 1"}
        body = {"input": "hi", "temperature": 1.0}
        first = await http.post("/v1/responses", json=body, headers=key)
        again = await http.post("/v1/responses", json=body, headers=key)
        assert again.json() == first.json()
        streamed = await http.post("/v1/responses", json={**body, "stream": True}, headers=key)
        assert f'"id":"{first.json()["id"]}"' in streamed.text
        assert streamed.text.count("event: response.completed") == 1
        async with running.served.connect() as ws:
            await send(ws, "response.create", **body, idempotency_key="try 1", stream_id="a")
            told = await hear(ws, *TERMINAL)
            assert told[-1]["response"] == first.json()
            assert [event["stream_id"] for event in told] == ["a"] * len(told)
            await send(ws, "response.create", input="ho", idempotency_key="try 1")
            error = (await hear(ws, *TERMINAL))[-1]
            assert (error["status"], error["error"]["code"]) == (409, "idempotency_conflict")
            await send(ws, "response.create", input="ho", idempotency_key="")
            assert (await hear(ws, *TERMINAL))[-1]["error"]["param"] == "idempotency_key"
        other = await http.post("/v1/responses", json={"input": "ho"}, headers=key)
        assert (other.status_code, other.json()["error"]["type"]) == (409, "conflict_error")
        opened = [
            await http.post("/v1/conversations", headers={"Idempotency-Key": "2"}) for _ in "ab"
        ]
        assert opened[0].json() == opened[1].json()
        await running.idle()


async def test_a_conversation_goes_by_the_name_that_its_client_gave(stack):
    async with stack() as running, http_of(running) as http:
        opened = [await http.post("/v1/conversations", json={"id": "mine"}) for _ in "ab"]
        assert opened[0].json() == opened[1].json()
        response = await said(http, "hi", conversation="mine")
        assert response["conversation"]["id"] == opened[0].json()["id"]
        listed = (await http.get("/v1/conversations/mine/items")).json()
        assert len(listed["data"]) == 2
        for wrong in ("conv_1", "", "a b", 7, "x" * 65):
            refused = await http.post("/v1/conversations", json={"id": wrong})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "id")
        await running.idle()


async def test_a_follower_that_reads_too_slowly_is_told_so():
    log = EventLog(max_entries=2)
    accepted = TurnAccepted(
        response_id="resp_1",
        session_id="conv_1",
        message_id="msg_1",
        previous_response_id=None,
        model="fake",
        instructions=None,
        created_at=1.0,
        request=TurnRequest(),
    )
    goes_on, stalled, sent = asyncio.Event(), asyncio.Event(), []

    async def send(message):
        sent.append(message)
        if len(sent) == 3:  # the head, the beginning, the first delta
            stalled.set()
            await goes_on.wait()

    async def receive():
        await asyncio.Event().wait()

    log.put(TextDelta(text="0"))
    stream = EventStream(LogReplay(accepted=accepted, log=log), GatewayLimits())
    telling = asyncio.create_task(stream({"type": "http", "headers": []}, receive, send))
    fast = log.read()
    await anext(fast)
    await stalled.wait()
    for number in range(1, 9):
        log.put(TextDelta(text=str(number)))
        await anext(fast)
    goes_on.set()
    await telling
    told = b"".join(message.get("body", b"") for message in sent).decode()
    assert told.count("event: error") == 1
    assert "the client reads too slowly" in told
    assert sent[-1]["more_body"] is False


async def test_a_request_with_a_key_is_answered_once_on_each_database(stack):
    async with stack() as running, http_of(running) as http:
        fields = {"json": {"input": "hi"}, "headers": {"Idempotency-Key": "mine"}}
        async with asyncio.timeout(60):
            first = await http.post("/v1/responses", **fields)
            again = await http.post("/v1/responses", **fields)
        assert first.status_code == again.status_code == 200
        assert first.json()["id"] == again.json()["id"]
