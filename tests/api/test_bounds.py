"""Everything that a client writes has a bound: each string, list, number, level, header and URL.

Right requests have each field once (`tests/fuzz/seeds.py`, which is held against the tables of
fields here); at each place of them something too large is put, and has to be refused by name.
"""

import asyncio
import copy
import json

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from sessiond.api.limits import MAX_HEAD_BYTES
from sessiond.api.protocol import chat, items, requests
from sessiond.api.protocol.chat import decode_chat_body
from sessiond.api.protocol.json_text import MAX_DEPTH, parse_object
from sessiond.api.protocol.policies import UPDATE_KEYS
from sessiond.api.protocol.requests import decode_create_body, decode_frame
from sessiond.errors import RequestError
from tests.api.scripted import ScriptedService, reply
from tests.fuzz.seeds import BODIES, CHATS, FRAMES
from tests.fuzz.structured import places, put
from tests.harness.serving import gateway_of, serving

LONG, MANY, HIGH = "x" * 70_000, 20_000, 10**18
# A conversation is as long as it is: what people write is bounded by the frame or body as a whole.
WRITTEN = {"input", "instructions", "content", "text"}
# taken back from clients that resend what they were told, and not looked at
NOT_LOOKED_AT = {"id", "status", "phase", "object", "annotations", "logprobs",
                 "prompt_cache_breakpoint"}  # fmt: skip
WIDE = {"seed", "turns"}  # any of 64 bits; what a policy takes is its own to say


def reads_frame(value):
    decode_frame(parse_object(json.dumps(value)))


READERS = [
    *((decode, seed) for decode, seeds in (
        (lambda value: decode_create_body(json.dumps(value).encode()), BODIES),
        (lambda value: decode_chat_body(json.dumps(value).encode()), CHATS),
        (reads_frame, FRAMES),
    ) for seed in seeds)
]  # fmt: skip


def at(value, path):
    for key in path:
        value = value[key]
    return value


def too_large(found):
    """What stands at a place, without bound."""
    match found:
        case bool() | None:
            return [LONG, [found] * MANY]
        case str():
            return [LONG]
        case int() | float():
            return [HIGH, -HIGH]
        case list():
            return [found * MANY if found else [1] * MANY]
        case dict():
            return [{**found, **{f"x{number}": "y" for number in range(MANY)}}]


def named(path):
    return next((key for key in reversed(path) if isinstance(key, str)), "")


@pytest.mark.parametrize("number", range(len(READERS)))
def test_each_field_is_bounded_by_name(number):
    decode, seed = READERS[number]
    decode(seed)
    tried = 0
    for path in [path for path in places(seed) if path]:
        if named(path) in NOT_LOOKED_AT and "conversation" not in path:
            continue
        for large in too_large(at(seed, path)):
            if isinstance(large, str) and (named(path) in WRITTEN or path[-1] == "input"):
                continue
            if isinstance(large, int) and named(path) in WIDE:
                continue
            with pytest.raises(RequestError) as refused:
                decode(put(copy.deepcopy(seed), path, large))
            assert refused.value.code in {"invalid_value", "unsupported_parameter"}, path
            assert len(refused.value.message) < 2000, path
            if named(path) != "type":  # another type has other fields
                assert str(path[0]) in refused.value.param, (path, refused.value.param)
            tried += 1
    assert tried


def keys_of(value):
    return {path[-1] for path in places(value) if path and isinstance(path[-1], str)}


def test_no_field_is_left_out():
    """A field that is added to a table has to be added to the seeds, and so gets a bound here."""
    assert {key for body in BODIES for key in body} | {"previous_response_id"} >= requests.BODY_KEYS
    assert "previous_response_id" in {key for frame in FRAMES for key in frame}
    assert chat.BODY_KEYS - set(CHATS[0]) <= {
        "audio",
        "function_call",
        "moderation",
        "prediction",
        "tools",
        "tool_choice",
        "top_logprobs",
        "web_search_options",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "stream_options",
        "parallel_tool_calls",
    }  # fmt: skip -- bounded in BODIES, or only null is taken
    assert keys_of(CHATS[0]) >= chat.MESSAGE_KEYS
    assert keys_of(FRAMES) >= UPDATE_KEYS | {"stream_id", "idempotency_key", "session", "keep"}
    assert {frame["type"] for frame in FRAMES} == set(requests.FRAME_TYPES)


@pytest.mark.parametrize("name", sorted(NOT_LOOKED_AT & (items.ITEM_KEYS | items.PART_KEYS)))
def test_what_is_not_looked_at_is_not_kept(name):
    where = items.ITEM_KEYS if name in items.ITEM_KEYS else items.PART_KEYS
    part = {"type": "input_text", "text": "a"} | ({name: LONG} if where is items.PART_KEYS else {})
    item = {"role": "user", "content": [part]} | ({name: LONG} if where is items.ITEM_KEYS else {})
    (decoded,) = items.decode_input([item])
    assert decoded == items.InputItem(role="user", text="a")


@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_nesting_is_bounded(opened):
    closed = {"[": "]", '{"a":': "}"}[opened]
    for depth in (MAX_DEPTH + 1, 900, 100_000):
        text = '{"metadata":' + opened * depth + "1" + closed * depth + "}"
        with pytest.raises(RequestError) as refused:
            parse_object(text)
        assert refused.value.code == "invalid_json"


async def test_frames_bodies_and_heads_are_bounded_and_the_server_goes_on():
    gateway = gateway_of(ScriptedService(lambda _: reply("x")), max_frame_bytes=4096,
                         max_body_bytes=4096)  # fmt: skip
    async with (
        serving(gateway) as served,
        httpx.AsyncClient(base_url=served.http_url, trust_env=False, timeout=60) as http,
    ):
        long_text = json.dumps({"input": LONG}).encode()
        assert (await http.post("/v1/responses", content=long_text)).status_code == 413

        async def unending():
            for _ in range(100):
                yield b" " * 1000

        assert (await http.post("/v1/responses", content=unending())).status_code == 413
        async with served.connect() as ws:
            await ws.send(long_text.decode())
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert ws.close_code == 1009
        for head in (
            b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /health/live?" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
            b"GET /health/live HTTP/1.1\r\nX-Session-Id: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
            b"GET /health/live HTTP/1.1\r\n" + b"a: b\r\n" * MAX_HEAD_BYTES + b"\r\n",
        ):
            status = await first_line(served.port, head)
            assert (
                status.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413", b"HTTP/1.1 431"))
                or status == b""
            )
        assert (await http.get("/health/live")).status_code == 200


async def first_line(port, head):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head)
        return await reader.readline()
    except ConnectionError:  # refused before all of it was read
        return b""
    finally:
        writer.close()
