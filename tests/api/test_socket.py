"""The socket: lanes, cancelling, faults, and how it ends."""

import asyncio
import json

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from sessiond.app import drain
from sessiond.domain import TurnBegun, TurnError, TurnFinished, TurnQueued
from sessiond.errors import RequestError
from sessiond.store.errors import StoreError
from tests.api.frames import closed, create, echo, hear, hear_turn, say, text_of
from tests.api.scripted import USAGE, ScriptedService, reply
from tests.harness.serving import gateway_of, serving


async def test_a_turn_over_the_socket():
    async with serving(gateway_of(ScriptedService(echo))) as served, served.connect() as ws:
        await create(ws, input="hi", stream_id="a")
        events = await hear_turn(ws)
        assert events[0]["type"] == "response.created"
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "you said hi"
        assert {event["stream_id"] for event in events} == {"a"}


async def test_turns_of_a_lane_come_one_after_the_other_and_lanes_side_by_side():
    gates = {"slow": asyncio.Event()}

    def script(request):
        gate = gates.get(text_of(request))
        return [TurnBegun(), *([gate] if gate else []), *echo(request)[1:]]

    async with serving(gateway_of(ScriptedService(script))) as served, served.connect() as ws:
        await create(ws, input="slow", stream_id="a")
        await create(ws, input="behind", stream_id="a")
        await create(ws, input="beside", stream_id="b")
        early = await hear_turn(ws)
        assert (early[0]["stream_id"], early[-1]["stream_id"]) == ("a", "b")
        gates["slow"].set()
        rest = await hear_turn(ws)
        begun = [e["stream_id"] for e in early + rest if e["type"] == "response.created"]
        assert sorted(begun) == ["a", "b"]
        behind = await hear_turn(ws)
        assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "you said slow"
        assert behind[-1]["response"]["output"][0]["content"][0]["text"] == "you said behind"


async def test_frames_are_bound_in_the_order_they_came():
    gate = asyncio.Event()
    service = ScriptedService(lambda request: [TurnBegun(), gate, *echo(request)[1:]])
    async with serving(gateway_of(service)) as served, served.connect() as ws:
        for number in range(4):
            await create(ws, input=str(number), stream_id="a" if number % 2 else "b")
        await say(ws, type="session.close", session="conv_9")
        while (await hear(ws))["type"] != "session.closed":
            pass
        assert [text_of(bound.request) for bound in service.bound] == ["0", "1", "2", "3"]
        gate.set()


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_json", None),
        (b"{}", "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ('{"type": "response.create", "tools": [1]}', "unsupported_parameter", "tools"),
        ('{"type": "response.create", "top_p": 7}', "invalid_value", "top_p"),
        ('{"type": "no.such"}', "invalid_value", "type"),
        ("{}", "invalid_value", "type"),
    ],
)
async def test_a_wrong_frame_is_answered_and_the_socket_stays_open(frame, code, param):
    async with serving(gateway_of(ScriptedService(echo))) as served, served.connect() as ws:
        await ws.send(frame)
        event = await hear(ws)
        assert (event["type"], event["status"]) == ("error", 400)
        assert (event["error"]["code"], event["error"]["param"]) == (code, param)
        await create(ws, input="hi")
        assert (await hear_turn(ws))[-1]["type"] == "response.completed"


async def test_an_error_waits_for_its_place_in_the_lane():
    gate = asyncio.Event()
    service = ScriptedService(lambda request: [TurnBegun(), gate, *echo(request)[1:]])
    async with serving(gateway_of(service)) as served, served.connect() as ws:
        await create(ws, input="hi", stream_id="a")
        await create(ws, input="hi", stream_id="a", temperature=99)
        await create(ws, input="hi", stream_id="b", temperature=99)
        events = [await hear(ws) for _ in range(3)]
        assert {e["stream_id"] for e in events if e["type"] == "error"} == {"b"}
        gate.set()
        assert (await hear_turn(ws))[-1]["type"] == "response.completed"
        error = await hear(ws)
        assert (error["type"], error["stream_id"]) == ("error", "a")


async def test_errors_of_binding_and_of_running_are_events():
    service = ScriptedService(lambda _: RequestError("request_too_large", "never fits"))
    async with serving(gateway_of(service)) as served, served.connect() as ws:
        await create(ws, input="hi", stream_id="a")
        event = await hear(ws)
        assert (event["status"], event["error"]["code"]) == (413, "request_too_large")
        service.bind_error = RequestError("previous_response_not_found", "no", param="x")
        await create(ws, input="hi", previous_response_id="resp_0", stream_id="a")
        event = await hear(ws)
        assert (event["status"], event["stream_id"]) == (404, "a")


async def test_a_fault_of_ours_fails_the_turn_and_spares_the_socket(caplog):
    def script(request):
        if text_of(request) == "break":
            return [TurnBegun(), ZeroDivisionError("bug")]
        if text_of(request) == "refuse":
            return ZeroDivisionError("bug")
        return echo(request)

    async with serving(gateway_of(ScriptedService(script))) as served, served.connect() as ws:
        await create(ws, input="break")
        assert (await hear_turn(ws))[-1]["response"]["error"]["code"] == "internal_error"
        await create(ws, input="refuse")
        assert (await hear(ws))["error"]["code"] == "internal_error"
        served.service.bind_error = ZeroDivisionError("bug")
        await create(ws, input="hi")
        assert (await hear(ws))["error"]["code"] == "internal_error"
        served.service.bind_error = None
        await create(ws, input="hi")
        assert (await hear_turn(ws))[-1]["type"] == "response.completed"
    assert "ZeroDivisionError" in caplog.text


async def test_a_database_that_fails_is_told_without_its_secrets_and_without_a_traceback(caplog):
    def script(request):
        return StoreError("INSERT at db.internal") if text_of(request) == "late" else echo(request)

    async with serving(gateway_of(ScriptedService(script))) as served, served.connect() as ws:
        await create(ws, input="late")
        events = [await hear(ws)]
        served.service.bind_error = StoreError("SELECT at db.internal")
        await create(ws, input="hi", stream_id="a")
        events.append(await hear(ws))
        async with httpx.AsyncClient(base_url=served.http_url, trust_env=False, timeout=60) as http:
            answer = await http.post("/v1/responses", json={"input": "hi"})
    errors = [event["error"] for event in events] + [answer.json()["error"]]
    assert {event["status"] for event in events} | {answer.status_code} == {500}
    for error in errors:
        assert error["code"] == "internal_error"
        assert "the database is unavailable" in error["message"]
        assert "db.internal" not in error["message"]
    assert answer.headers["Retry-After"] == "1"
    assert "SELECT at db.internal" in caplog.text
    assert "Traceback" not in caplog.text


async def test_cancelling_by_id_by_lane_and_without_either():
    service = ScriptedService(lambda _: [TurnQueued(), asyncio.Event()])
    async with serving(gateway_of(service)) as served, served.connect() as ws:
        for cancel in ({"stream_id": "a"}, {}):
            await create(ws, input="hi", stream_id="a")
            await hear(ws)
            await say(ws, type="response.cancel", **cancel)
            ending = (await hear_turn(ws))[-1]
            assert ending["response"]["incomplete_details"] == {"reason": "cancelled"}
        await create(ws, input="hi", stream_id="a")
        created = await hear(ws)
        await say(ws, type="response.cancel", response_id=created["response"]["id"], keep=False)
        assert (await hear_turn(ws))[-1]["type"] == "response.incomplete"
        assert service.bound[-1].keep is False
        # nothing runs in the lane any more, and an unknown id is told
        await say(ws, type="response.cancel", stream_id="a")
        await say(ws, type="response.cancel", response_id="resp_none")
        assert (await hear(ws))["error"]["code"] == "previous_response_not_found"


async def test_a_session_is_closed_by_frame():
    service = ScriptedService(echo)
    async with serving(gateway_of(service)) as served, served.connect() as ws:
        await say(ws, type="session.close", session="conv_7", stream_id="a")
        event = await hear(ws)
        assert event == {"type": "session.closed", "session": "conv_7", "stream_id": "a"}
        assert service.closed_sessions == ["conv_7"]


async def test_too_many_frames_or_lanes_are_refused_at_once():
    gate = asyncio.Event()
    service = ScriptedService(lambda request: [TurnBegun(), gate, *echo(request)[1:]])
    service.end_turn_every(3.5)
    gateway = gateway_of(service, max_lanes=2, max_lane_frames=2)
    async with serving(gateway) as served, served.connect() as ws:
        for _ in range(3):
            await create(ws, input="hi", stream_id="a")
        await create(ws, input="hi", stream_id="b")
        await create(ws, input="hi", stream_id="c")
        events = [await hear(ws) for _ in range(6)]
        errors = [event for event in events if event["type"] == "error"]
        assert [event["stream_id"] for event in errors] == ["a", "c"]
        assert {event["error"]["code"] for event in errors} == {"queue_full"}
        assert errors[0]["error"]["headers"] == {"retry-after": "4"}, "as turns end"
        assert len(service.bound) == 3
        gate.set()


async def test_a_disconnect_lets_go_of_sessions_and_of_turns_that_never_ran():
    service = ScriptedService(lambda _: [TurnBegun(), asyncio.Event()])
    gateway = gateway_of(service)
    async with serving(gateway) as served:
        async with served.connect() as ws:
            await create(ws, input="hi", stream_id="a")
            await create(ws, input="hi", stream_id="a")
            await say(ws, type="session.close", session="conv_1")
            while (await hear(ws))["type"] != "session.closed":
                pass
            assert len(service.attached) == 1
            assert gateway.connections.open_count == 1
        await asyncio.wait_for(service.detached.get(), 60)
        assert service.attached == set()
        assert service.dropped == ["resp_2"]


async def test_a_lost_connection_is_the_same_as_a_close():
    service = ScriptedService(lambda _: [TurnBegun(), asyncio.Event()])
    async with serving(gateway_of(service)) as served:
        ws = await served.connect()
        await create(ws, input="hi")
        await hear(ws)
        ws.transport.abort()
        await asyncio.wait_for(service.detached.get(), 60)
        assert service.attached == set()


async def test_turns_of_a_lost_socket_are_cancelled_before_anything_else_is_done(monkeypatch):
    service = ScriptedService(lambda _: [TurnBegun(), asyncio.Event()])
    begun, gate, drop = asyncio.Event(), asyncio.Event(), service.drop

    async def wait_and_drop(bound):  # as long as a database takes
        begun.set()
        await gate.wait()
        await drop(bound)

    monkeypatch.setattr(service, "drop", wait_and_drop)
    async with serving(gateway_of(service)) as served:
        ws = await served.connect()
        await create(ws, input="hi")
        await create(ws, input="hi")
        await say(ws, type="session.close", session="conv_1")
        while (await hear(ws))["type"] != "session.closed":
            pass
        ws.transport.abort()
        await asyncio.wait_for(begun.wait(), 60)
        assert set(service.left) == service.attached
        gate.set()
        await asyncio.wait_for(service.detached.get(), 60)


async def test_a_frame_over_the_limit_closes_1009_and_neighbours_live():
    gateway = gateway_of(ScriptedService(echo), max_frame_bytes=2048)
    async with serving(gateway) as served, served.connect() as ws, served.connect() as neighbour:
        await create(ws, input="x" * 4096)
        assert await closed(ws) == 1009
        await create(neighbour, input="hi")
        assert (await hear_turn(neighbour))[-1]["type"] == "response.completed"


async def test_bad_utf8_closes_1007_without_a_traceback_and_neighbours_live(caplog):
    """Field case T45."""
    service = ScriptedService(echo)
    async with serving(gateway_of(service)) as served, served.connect() as neighbour:
        ws = await served.connect()
        # a text frame of the bytes c3 28, masked with zeros (RFC 6455, section 5.2)
        ws.transport.write(bytes([0x81, 0x82, 0, 0, 0, 0, 0xC3, 0x28]))
        assert await closed(ws) == 1007
        await asyncio.wait_for(service.detached.get(), 60)
        await neighbour.send("{junk")
        assert (await hear(neighbour))["error"]["code"] == "invalid_json"
        await create(neighbour, input="hi")
        assert (await hear_turn(neighbour))[-1]["type"] == "response.completed"
    assert "Traceback" not in caplog.text


async def test_a_peer_that_answers_no_pings_is_freed_within_interval_and_timeout():
    """Field case T07: eight half-open sockets, amid a turn or idle."""
    service = ScriptedService(lambda _: [TurnBegun(), asyncio.Event()])
    gateway = gateway_of(service, ping_interval_s=0.1, ping_timeout_s=0.1)
    async with serving(gateway) as served:
        peers = []
        for number in range(8):
            peer = await served.connect(ping_interval=None)
            peer.transport.pause_reading()  # alive for TCP, gone for everyone else
            if number < 4:
                await create(peer, input="hi")
            peers.append(peer)
        for _ in peers:
            await asyncio.wait_for(service.detached.get(), 60)
        assert service.attached == set()
        assert len(service.bound) == 4
        for peer in peers:
            peer.transport.abort()


async def test_a_peer_that_does_not_read_is_closed_1013_and_is_told():
    endless = [TurnBegun(), *reply(*(["x" * 10_000] * 2000))[1:]]
    service = ScriptedService(lambda _: endless)
    gateway = gateway_of(service, send_timeout_s=0.2, max_outbound_events=4)
    async with serving(gateway) as served:
        ws = await served.connect(max_queue=1, ping_interval=None)
        await create(ws, input="hi")
        await asyncio.wait_for(service.detached.get(), 60)
        assert await closed(ws) == 1013


async def test_the_server_closes_1012_after_the_running_turn():
    gate = asyncio.Event()
    service = ScriptedService(lambda request: [TurnBegun(), gate, *echo(request)[1:]])
    gateway = gateway_of(service)
    async with serving(gateway) as served, served.connect() as ws:
        await create(ws, input="hi")
        await hear(ws)
        draining = asyncio.create_task(drain(gateway))
        await asyncio.wait_for(service.drain_began.wait(), 60)
        with pytest.raises(InvalidStatus) as refused:
            await served.connect()
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["Retry-After"] == "1"
        assert json.loads(refused.value.response.body)["error"]["code"] == "draining"
        await create(ws, input="another", stream_id="b")
        assert (await hear_turn(ws))[-1]["error"]["code"] == "draining"
        gate.set()
        assert (await hear_turn(ws))[-1]["type"] == "response.completed"
        assert await closed(ws) == 1012
        await draining


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (None, None),
        (["responses", "openai-insecure-api-key.sk-1"], "responses"),
        (["openai-insecure-api-key.sk-1", "realtime"], "realtime"),
    ],
)
async def test_only_the_real_subprotocol_is_echoed(offered, chosen):
    async with (
        serving(gateway_of(ScriptedService(echo))) as served,
        served.connect(subprotocols=offered) as ws,
    ):
        assert ws.subprotocol == chosen


async def test_a_key_alone_or_an_unknown_subprotocol_is_denied():
    async with serving(gateway_of(ScriptedService(echo))) as served:
        for offered in (["openai-insecure-api-key.sk-1"], ["graphql-ws"]):
            with pytest.raises(InvalidStatus) as refused:
                await served.connect(subprotocols=offered)
            response = refused.value.response
            assert response.status_code == 400
            assert "sk-1" not in response.body.decode()


async def test_a_bearer_key_is_taken_and_the_session_header_echoed():
    headers = {"Authorization": "Bearer sk-any", "X-Session-Id": "s1"}
    async with (
        serving(gateway_of(ScriptedService(echo))) as served,
        served.connect(additional_headers=headers) as ws,
    ):
        assert ws.response.headers["X-Session-Id"] == "s1"


async def test_a_denial_leaves_no_complaint_in_the_log(caplog):
    async with serving(gateway_of(ScriptedService(echo))) as served:
        with pytest.raises(InvalidStatus):
            await served.connect(subprotocols=["graphql-ws"])
    assert "handshake" not in caplog.text


async def test_a_failed_turn_has_no_output():
    error = TurnError(code="engine_restarted", message="lost")
    ending = TurnFinished(status="failed", text="", usage=USAGE, error=error)
    service = ScriptedService(lambda _: [TurnBegun(), ending])
    async with serving(gateway_of(service)) as served, served.connect() as ws:
        await create(ws, input="hi")
        assert (await hear_turn(ws))[-1]["response"]["error"]["code"] == "engine_restarted"
