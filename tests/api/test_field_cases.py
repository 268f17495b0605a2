"""Faults that users of comparable servers met, played against the whole stack."""

import asyncio
import itertools
import json

import httpx
import pytest
from websockets.frames import Opcode

from tests.api.hooks import Cancels, Steps
from tests.api.schemas import validate, validate_event
from tests.harness.stack import MODEL

TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}


def http_of(running):
    return httpx.AsyncClient(base_url=running.served.http_url, trust_env=False, timeout=60)


async def create(ws, **pairs):
    await ws.send(json.dumps({"type": "response.create", "model": MODEL, **pairs}))


async def hear(ws, *kinds):
    """Read to the first event of these kinds."""
    while True:
        event = json.loads(await asyncio.wait_for(ws.recv(), 60))
        validate_event(event)
        if event["type"] in kinds:
            return event


def endless(running):
    running.model.script([120] * 4000)


async def test_t01_sessions_of_a_dropped_socket_are_all_given_back(stack):
    async with stack() as running:
        before = await running.stats()
        async with running.served.connect() as ws:
            for name in "ABCD":
                await create(ws, input=f"I am {name} " * 20)
                first = await hear(ws, "response.completed", "response.incomplete")
                await create(ws, input="more", previous_response_id=first["response"]["id"])
                await hear(ws, "response.completed", "response.incomplete")
            assert (await running.stats()).active_blocks > 0
            ws.transport.abort()
        await running.idle()
        after = await running.stats()
        assert after.free_blocks + after.cached_blocks == before.free_blocks


@pytest.mark.parametrize("stream", [False, True])
async def test_t06_a_cut_request_stops_within_one_step(stack, stream):
    async with stack() as running:
        endless(running)
        steps, cancels = Steps(running), Cancels(running)
        pairs = {"model": MODEL, "input": "hi", "max_output_tokens": 1000, "stream": stream}
        body = json.dumps(pairs).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", running.served.port)
        head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        while running.model.steps == 0:  # noqa: ASYNC110 -- the engine's thread counts
            await asyncio.sleep(0.001)
        if stream:
            await reader.readuntil(b"response.created")
        writer.close()
        await asyncio.wait_for(cancels.told.wait(), 60)
        at_the_cut = running.model.steps
        steps.release()
        await running.idle()
        assert running.model.steps <= at_the_cut + 1


async def test_t06_a_cut_socket_stops_within_one_step(stack):
    async with stack() as running:
        endless(running)
        steps, cancels = Steps(running), Cancels(running)
        async with running.served.connect() as ws:
            await create(ws, input="hi", max_output_tokens=1000)
            await hear(ws, "response.created")
            while running.model.steps == 0:  # noqa: ASYNC110 -- the engine's thread counts
                await asyncio.sleep(0.001)
        await asyncio.wait_for(cancels.told.wait(), 60)
        at_the_cut = running.model.steps
        steps.release()
        await running.idle()
        assert running.model.steps <= at_the_cut + 1


async def test_t07_half_open_sockets_free_their_slots(stack):
    async with stack(ping_interval_s=0.5, ping_timeout_s=0.5) as running:
        options = {"ping_interval": None, "max_queue": None}  # a full queue would stop pongs
        peers = []
        for number in range(8):
            peer = await running.served.connect(**options)
            endless(running)
            await create(peer, input=f"I am {number}", max_output_tokens=3000)
            await hear(peer, "response.output_text.delta")
            peer.transport.pause_reading()
            peers.append(peer)
        await running.idle()
        async with running.served.connect() as ws:
            running.model.script([72, 105, 256])
            await create(ws, input="hi")
            await hear(ws, "response.completed")
        for peer in peers:
            peer.transport.abort()
            await peer.wait_closed()


async def test_t43_a_blocked_step_stops_neither_pings_nor_health(stack):
    async with stack(ping_interval_s=0.05, ask_timeout_s=0.05) as running:
        steps = Steps(running)
        async with running.served.connect() as ws, http_of(running) as http:
            pings = count_pings(ws)
            running.model.script([72, 105, 256])
            await create(ws, input="hi")
            await hear(ws, "response.created")
            await steps.begun()
            for _ in range(6):
                await asyncio.wait_for(anext(pings), 60)
                for path in ("/health/live", "/v1/models"):
                    assert (await http.get(path)).status_code == 200
                # it is asked in 0.05 s: no new turn should come here now
                assert (await http.get("/health/ready")).status_code == 503
            assert "sessiond_websocket_connections 1.0" in (await http.get("/metrics")).text
            assert (await http.get("/health/capacity")).headers["Retry-After"] == "1"
            steps.release()
            ending = await hear(ws, *TERMINAL)
            assert ending["type"] == "response.completed"
        await running.idle()


async def test_t45_junk_of_one_socket_is_no_business_of_its_neighbours(stack):
    async with stack() as running:
        running.model.script([120] * 200)
        async with running.served.connect() as neighbour:
            await create(neighbour, input="hi", max_output_tokens=150)
            await hear(neighbour, "response.output_text.delta")
            junk = await running.served.connect()
            await junk.send('{"type": "response.create", "input": "\\ud800"}')
            assert (await hear(junk, "error"))["error"]["code"] == "invalid_json"
            junk.transport.write(bytes([0x81, 0x82, 0, 0, 0, 0, 0xC3, 0x28]))
            await asyncio.wait_for(junk.wait_closed(), 60)
            assert junk.close_code == 1007
            ending = await hear(neighbour, *TERMINAL)
            assert ending["response"]["usage"]["output_tokens"] == 150
        await running.idle()


async def test_t47_a_silent_prefill_is_broken_by_pings_and_comments(stack):
    async with stack(ping_interval_s=0.05, heartbeat_s=0.05) as running:
        steps = Steps(running)
        running.model.script([72, 105, 256])
        async with running.served.connect() as ws, http_of(running) as http:
            pings = count_pings(ws)
            await create(ws, input="hi")
            await hear(ws, "response.created")
            for _ in range(3):
                await asyncio.wait_for(anext(pings), 60)
            body = {"model": MODEL, "input": "hi", "stream": True, "max_output_tokens": 3}
            async with http.stream("POST", "/v1/responses", json=body) as response:
                lines = response.aiter_lines()
                comments = 0
                while comments < 3:
                    comments += (await anext(lines)).startswith(":")
                steps.release()
                rest = [line async for line in lines]
            assert "event: response.incomplete" in rest or "event: response.completed" in rest
            await hear(ws, "response.completed")
        await running.idle()


def count_pings(ws):
    """An iterator that yields for each ping that comes from now on."""
    pings = asyncio.Queue()
    read = ws.protocol.recv_frame

    def recv_frame(frame):
        if frame.opcode is Opcode.PING:
            pings.put_nowait(frame)
        read(frame)

    ws.protocol.recv_frame = recv_frame

    async def each():
        for number in itertools.count(1):
            await pings.get()
            yield number

    return each()


async def test_t04_cancelling_a_queued_turn_leaves_the_session_usable(stack):
    async with stack() as running:
        steps = Steps(running)
        async with running.served.connect() as ws:
            running.model.script([72, 105, 256])
            await create(ws, input="one", stream_id="a")
            created = await hear(ws, "response.created")
            session = created["response"]["conversation"]["id"]
            await create(ws, input="two", conversation=session, stream_id="a")
            steps.release()
            await hear(ws, "response.completed")
            await ws.send(json.dumps({"type": "response.cancel", "stream_id": "a"}))
            await hear(ws, "response.incomplete", "response.completed")
            running.model.script([79, 75, 256])
            await create(ws, input="three", conversation=session, stream_id="a")
            assert (await hear(ws, *TERMINAL))["type"] == "response.completed"
        await running.idle()


async def test_t23_an_answer_that_meets_the_context_limit_is_told_whole(stack):
    async with stack(max_model_len=440) as running, http_of(running) as http:
        endless(running)
        async with running.served.connect() as ws:
            # a role's token, the text, the end of turn, the reply's role: 40 before the reply
            await create(ws, input="x" * 36, max_output_tokens=1000)
            told = ""
            while (event := await hear(ws, *TERMINAL, "response.output_text.delta"))[
                "type"
            ] == "response.output_text.delta":
                told += event["delta"]
            response = event["response"]
            assert response["status"] == "incomplete"
            assert response["incomplete_details"] == {"reason": "context_length"}
            assert response["usage"]["output_tokens"] == 400
            assert told == response["output"][0]["content"][0]["text"] == "x" * 400
            session = response["conversation"]["id"]
            await create(ws, input="go on", conversation=session)
            refused = await hear(ws, *TERMINAL)
            assert (refused["status"], refused["error"]["code"]) == (400, "context_length_exceeded")
            items = (await http.get(f"/v1/conversations/{session}/items?order=desc")).json()
            assert items["data"][0]["content"][0]["text"] == "x" * 400
            running.model.script([72, 105, 256])
            assert (await http.post(f"/v1/sessions/{session}/reset")).status_code == 200
            await create(ws, input="hi", conversation=session)
            assert (await hear(ws, *TERMINAL))["type"] == "response.completed"
        await running.idle()


async def test_t18_a_busy_session_queues_in_its_lane_and_is_409_elsewhere(stack):
    async with stack() as running:
        steps = Steps(running)
        async with running.served.connect() as ws, http_of(running) as http:
            running.model.script([72, 105, 256])
            await create(ws, input="one", stream_id="a")
            created = await hear(ws, "response.created")
            session = created["response"]["conversation"]["id"]
            await create(ws, input="two", conversation=session, stream_id="b")
            error = await hear(ws, "error")
            assert (error["status"], error["stream_id"]) == (409, "b")
            assert error["error"]["code"] == "turn_in_progress"
            response = await http.post(
                "/v1/responses", json={"input": "two", "conversation": session}
            )
            assert response.status_code == 409
            running.model.script([72, 105, 256])
            await create(ws, input="two", conversation=session, stream_id="a")
            steps.release()
            for _ in range(2):
                await hear(ws, "response.completed", "response.incomplete")
        await running.idle()


async def test_everything_over_http_is_standard_or_ours(stack):
    async with stack() as running, http_of(running) as http:
        running.model.script([72, 105, 256])
        response = (await http.post("/v1/responses", json={"input": "hi"})).json()
        session = response["conversation"]["id"]
        for path, schema in (
            (f"/v1/responses/{response['id']}", "Response"),
            (f"/v1/responses/{response['id']}/input_items", "ResponseItemList"),
            (f"/v1/conversations/{session}", "ConversationResource"),
            (f"/v1/conversations/{session}/items", "ConversationItemList"),
            ("/v1/models", "ListModelsResponse"),
        ):
            found = await http.get(path)
            assert found.status_code == 200, found.text
            validate(found.json(), schema)
        stored = (await http.get(f"/v1/responses/{response['id']}")).json()
        assert stored == response
        view = (await http.get(f"/v1/sessions/{session}?include=page_table")).json()
        assert view["id"] == session
        assert {
            "state",
            "tier",
            "turns",
            "blocks",
            "kv_bytes",
            "usage",
            "page_table",
        } <= view.keys()
        assert "page_table" not in (await http.get(f"/v1/sessions/{session}")).json()
        listed = (await http.get("/v1/sessions")).json()
        assert [one["id"] for one in listed["data"]] == [session]
        assert (await http.post(f"/v1/sessions/{session}/reset")).status_code == 200
        cancelled = await http.post(f"/v1/responses/{response['id']}/cancel")
        assert cancelled.json()["status"] == "completed"
        assert (await http.delete(f"/v1/responses/{response['id']}")).json()["deleted"] is True
        assert (await http.get(f"/v1/responses/{response['id']}")).status_code == 404
        assert (await http.delete(f"/v1/sessions/{session}")).json()["deleted"] is True
        assert (await http.get(f"/v1/sessions/{session}")).json()["state"] == "closed"
        gone = await http.get(f"/v1/conversations/{session}")
        assert gone.json()["error"]["code"] == "conversation_not_found"
        metrics = (await http.get("/metrics")).text
        assert 'sessiond_turns_total{outcome="completed"} 1.0' in metrics
        await running.idle()
