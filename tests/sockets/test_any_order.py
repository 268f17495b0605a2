"""Frames that come while a reply is written, too early, too late, or twice."""

import asyncio
import json
import threading

from websockets.frames import Opcode

from sessiond.api.limits import GatewayLimits
from sessiond.assembly import _gateway_limits
from sessiond.settings import Settings
from tests.sockets.raw_peer import frame, raw_peer

ENDINGS = {"response.completed", "response.incomplete", "response.failed", "error"}
HI = [72, 105, 256]


def say(peer, kind, **pairs):
    peer.send(frame(Opcode.TEXT, json.dumps({"type": kind, **pairs}).encode()))


def create(peer, text, **pairs):
    say(peer, "response.create", input=text, **pairs)


async def hear(peer, *kinds):
    """Read to the first event of these kinds."""
    while (found := await peer.next()) is not None:
        if found.opcode is Opcode.TEXT and json.loads(found.data)["type"] in kinds:
            return json.loads(found.data)
    raise AssertionError(f"closed before any of {kinds}")


def hold(running):
    running.model.gate = threading.Event()


async def test_frames_in_one_packet_amid_a_reply_are_each_answered_in_their_lanes(stack):
    async with stack() as running, raw_peer(running.served.ws_url) as peer:
        hold(running)
        running.model.script([120] * 40)
        create(peer, "long", stream_id="a", max_output_tokens=40)
        created = await hear(peer, "response.created")
        session = created["response"]["conversation"]["id"]
        running.model.script(HI)
        packet = [
            {"type": "response.create", "input": "two", "stream_id": "a", "conversation": session},
            {"type": "no.such", "stream_id": "a"},
            {"type": "session.update", "session": session, "priority": "low", "stream_id": "b"},
            {"type": "response.create", "input": "no", "stream_id": "c", "conversation": session},
            {"type": "response.cancel", "response_id": "resp_none", "stream_id": "d"},
        ]
        peer.send(*(frame(Opcode.TEXT, json.dumps(one).encode()) for one in packet))
        assert await peer.is_answered()  # pings are answered while all of that waits
        told = {}
        for _ in range(3):  # those of other lanes do not wait for the reply
            event = await hear(peer, "session.updated", "error")
            told[event["stream_id"]] = event.get("error", {}).get("code")
        assert told == {"b": None, "c": "turn_in_progress", "d": "previous_response_not_found"}
        running.model.gate.set()
        in_order = [await hear(peer, *ENDINGS) for _ in range(3)]
        assert [one["stream_id"] for one in in_order] == ["a"] * 3
        assert [one["type"] for one in in_order][-1] == "error"
        assert in_order[0]["response"]["usage"]["output_tokens"] == 40
        assert in_order[1]["response"]["conversation"]["id"] == session


async def test_what_comes_too_early_or_too_late_is_told_and_the_socket_goes_on(stack):
    async with stack() as running, raw_peer(running.served.ws_url) as peer:
        say(peer, "response.cancel")  # of nothing
        say(peer, "response.cancel", stream_id="a")
        say(peer, "response.resume", response_id="resp_none")
        assert (await hear(peer, "error"))["error"]["code"] == "previous_response_not_found"
        for kind, fields in (("session.update", {"priority": "low"}), ("session.close", {})):
            say(peer, kind, session="conv_none", **fields)
            assert (await hear(peer, "error"))["error"]["code"] == "conversation_not_found"
        create(peer, "on nothing", previous_response_id="resp_none")
        assert (await hear(peer, "error"))["error"]["code"] == "previous_response_not_found"
        running.model.script(HI)
        create(peer, "hi")
        response = (await hear(peer, "response.completed"))["response"]
        say(peer, "response.cancel", response_id=response["id"])  # has ended
        say(peer, "session.close", session=response["conversation"]["id"])
        await hear(peer, "session.closed")
        create(peer, "more", conversation=response["conversation"]["id"])
        assert (await hear(peer, *ENDINGS))["error"]["code"] == "conversation_not_found"
        running.model.script(HI)
        create(peer, "hi")
        await hear(peer, "response.completed")


async def test_the_same_id_twice_is_one_turn_one_session_or_a_fork(stack):
    async with stack() as running, raw_peer(running.served.ws_url) as peer:
        for _ in range(6):
            running.model.script(HI)
        create(peer, "hi", idempotency_key="k1")
        first = (await hear(peer, "response.completed"))["response"]
        create(peer, "hi", idempotency_key="k1")
        assert (await hear(peer, "response.completed"))["response"]["id"] == first["id"]
        for _ in range(2):  # the tip goes on once; the second time it is an older response
            create(peer, "more", previous_response_id=first["id"])
        sessions = [
            (await hear(peer, "response.completed"))["response"]["conversation"]["id"]
            for _ in range(2)
        ]
        assert sessions[0] == first["conversation"]["id"] != sessions[1]
        for _ in range(2):
            say(peer, "session.close", session=sessions[1])
        await hear(peer, "session.closed")
        again = await hear(peer, "session.closed", "error")
        assert again["error"]["code"] == "conversation_not_found"


async def test_frames_without_end_are_bounded_and_refused_not_kept(stack):
    async with stack() as running, raw_peer(running.served.ws_url) as peer:
        hold(running)
        limits = running.served.gateway.limits
        count = 3 * limits.max_lane_frames
        for number in range(count):
            create(peer, str(number), max_output_tokens=1)
        refused = [await hear(peer, "error") for _ in range(count - limits.max_lane_frames)]
        assert {one["error"]["code"] for one in refused} == {"queue_full"}
        running.model.gate.set()
        served = [await hear(peer, *ENDINGS) for _ in range(limits.max_lane_frames)]
        assert {one["type"] for one in served} <= {"response.completed", "response.incomplete"}


def test_t47_no_silence_lasts_longer_than_15_seconds():
    limits = _gateway_limits(Settings())
    assert limits.ping_interval_s <= 15
    assert limits.heartbeat_s <= 15


def test_limits_that_nobody_has_set_are_those_of_the_settings():
    assert GatewayLimits() == _gateway_limits(Settings())


async def test_t07_half_open_sockets_that_never_spoke_are_freed_too(stack):
    async with stack(ping_interval_s=0.3, ping_timeout_s=0.3) as running:
        connections = running.served.gateway.connections
        async with raw_peer(running.served.ws_url) as one, raw_peer(running.served.ws_url) as two:
            await asyncio.gather(one.end_without_answers(), two.end_without_answers())
            async with asyncio.timeout(60):
                while connections.open_count:  # noqa: ASYNC110 -- tells nobody of each
                    await asyncio.sleep(0.01)
