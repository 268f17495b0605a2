"""Tiers under the whole stack: whose KV comes back to whom, and what is never written down."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from engine.kv.tiers.mover import ThreadMover
from tests.api.schemas import validate_event
from tests.api.test_policies import Keys
from tests.harness.stack import real_stack
from tests.tiers.support import tiers_of

ENDINGS = {"response.completed", "response.incomplete", "response.failed", "error"}
BLOCK_BYTES = 1000
SLOT_BYTES = 4096
CANARIES = [f"canary {number:02d} sings {number * 7919}" for number in range(16)]
LONG = "Say something about the sea, the wind and the birds above it. " * 5


def tiers(folder, **slots):
    """Tiers of so many slots, with real threads."""

    def build(device):
        return tiers_of(ThreadMover(), BLOCK_BYTES, folder=folder, **slots)(device)

    return build


@asynccontextmanager
async def socket_of(running, key="ann"):
    headers = {"Authorization": f"Bearer {key}"}
    async with running.served.connect(additional_headers=headers) as ws:
        yield ws


async def say(ws, text, **pairs):
    """A turn; returns its response."""
    pairs = {"temperature": 0, "max_output_tokens": 40, **pairs}
    await ws.send(json.dumps({"type": "response.create", "input": text, **pairs}))
    while True:
        event = json.loads(await asyncio.wait_for(ws.recv(), 60))
        validate_event(event)
        if event["type"] in ENDINGS:
            assert event["type"] in {"response.completed", "response.incomplete"}, event
            return event["response"]


def text_of(response):
    return response["output"][0]["content"][0]["text"]


async def sing(running, canary, turns=4):
    """A session that begins with its canary; returns what it was answered."""
    texts, last = [], {}
    async with socket_of(running) as ws:
        for number in range(turns):
            words = f"{canary}; " * 6 if not number else f"and verse {number}?"
            response = await say(ws, words, **last)
            last = {"previous_response_id": response["id"]}
            texts.append(text_of(response))
    return texts


async def until(running, condition):
    """Wait until the engine's numbers are so."""
    async with asyncio.timeout(60):
        while not condition(await running.stats()):  # noqa: ASYNC110 -- asks the engine's thread
            await asyncio.sleep(0.005)


def pages(response):
    """Full blocks of a turn's input and what came before it."""
    return response["usage"]["input_tokens"] // 16


@pytest.mark.parametrize("slots", [{"host": 200}, {"disk": 200}, {"host": 40, "disk": 200}])
async def test_t34_no_canary_crosses_between_sessions_that_are_swapped_all_the_time(
    stack, lend_database, tmp_path, slots
):
    """llama.cpp#27148: the fake model's replies change with any slot that is not the session's."""
    with lend_database() as url:
        async with real_stack(url) as running:
            expected = [await sing(running, canary) for canary in CANARIES]
    assert len({tuple(texts) for texts in expected}) == len(CANARIES)
    async with stack(num_blocks=48, tiers=tiers(tmp_path, **slots)) as running:
        found = await asyncio.gather(*(sing(running, canary) for canary in CANARIES))
        stats = await running.stats()
        assert found == expected
        assert stats.restored_tokens_total > 0
        await running.idle()


@pytest.mark.parametrize("place", ["device", "host", "disk"])
async def test_t36_one_tenants_kv_is_no_others_on_any_tier(stack, tmp_path, place):
    """sglang#37160, LMCache#4825: the salt must not be lost below the device."""
    slots = {} if place == "device" else {place: 200}
    options = {"num_blocks": 64, "auth": Keys(), "tiers": tiers(tmp_path, **slots)}
    async with (
        stack(**options) as running,
        socket_of(running) as ann,
        socket_of(running, "bob") as bob,
    ):
        first = await say(ann, LONG)
        if place != "device":
            await until(running, lambda stats: stats.tiers[place].blocks >= pages(first))
            await fill(ann)
        foreign = await say(bob, LONG)
        own = await say(ann, LONG)
    assert foreign["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert foreign["sessiond"]["restored_tokens"] == 0
    assert own["usage"]["input_tokens_details"]["cached_tokens"] > 200
    if place != "device":
        assert own["sessiond"]["restored_from"] == place


async def fill(ws):
    """Take every block of the pool, so that nothing is found on the device after it."""
    await say(ws, "x" * 900, max_output_tokens=16)


async def test_nothing_of_a_session_that_is_not_stored_lies_in_the_file(stack, tmp_path):
    async with stack(num_blocks=64, tiers=tiers(tmp_path, host=200, disk=200)) as running:
        async with socket_of(running) as ws:
            first = await say(ws, LONG, store=False)
            second = await say(ws, "more", previous_response_id=first["id"])
            fork = await say(ws, LONG, previous_response_id=first["id"])
            assert len({one["conversation"]["id"] for one in (first, second, fork)}) == 2
            await until(running, lambda stats: stats.tiers["host"].blocks > pages(fork))
            async with http_of(running) as http:
                for one in (first, fork):
                    path = f"/v1/sessions/{one['conversation']['id']}/park"
                    assert (await http.post(path)).status_code == 200
            assert slots_on_disk(tmp_path) == b""
            stored = await say(ws, LONG[::-1])
            await until(running, lambda stats: stats.tiers["disk"].blocks >= pages(stored))
            assert len(slots_on_disk(tmp_path)) // SLOT_BYTES <= total_pages(stored)
        await running.idle()


async def test_a_deleted_session_leaves_no_trace_in_the_file(stack, tmp_path):
    async with stack(tiers=tiers(tmp_path, host=200, disk=200)) as running:
        async with socket_of(running) as ws, http_of(running) as http:
            first = await say(ws, LONG)
            last = await say(ws, "more", previous_response_id=first["id"])
            await until(running, lambda stats: stats.tiers["disk"].blocks >= pages(last))
            assert slots_on_disk(tmp_path).strip(b"\0")
            path = f"/v1/sessions/{first['conversation']['id']}"
            assert (await http.delete(path)).status_code == 200
            await until(running, lambda _: not slots_on_disk(tmp_path).strip(b"\0"))
            await until(running, lambda stats: not any(one.blocks for one in stats.tiers.values()))
        await running.idle()


def total_pages(response):
    """Full blocks after a turn."""
    return (response["usage"]["total_tokens"] + 3) // 16  # with the end that is owed


def http_of(running):
    return httpx.AsyncClient(base_url=running.served.http_url, trust_env=False, timeout=60)


def slots_on_disk(folder):
    """The bytes of the disk tier's slots."""
    return b"".join(path.read_bytes()[4096:] for path in folder.iterdir())
