"""A server that has seen everything its metrics tell of: warm and cold turns, tiers, trimming."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

from tests.api.test_tiers import tiers, until
from tests.harness.stack import real_stack

ENDINGS = {"response.completed", "response.incomplete", "response.failed", "error"}
SHIFTED = [{"type": "last_turns", "turns": 1, "fidelity": "shifted"}]
NUM_BLOCKS = 48
BLOCK_BYTES = 16 * 64


async def say(ws, text, **pairs):
    """A turn; returns its last event."""
    frame = {"temperature": 0, "max_output_tokens": 24, **pairs}
    await ws.send(json.dumps({"type": "response.create", "input": text, **frame}))
    async with asyncio.timeout(60):
        while (event := json.loads(await ws.recv()))["type"] not in ENDINGS:
            pass
    return event


@asynccontextmanager
async def busy_server(url, folder):
    """Serve; yields the stack and the responses of all turns that ended well."""
    small = {"num_blocks": NUM_BLOCKS, "tiers": tiers(folder, host=100, disk=200)}
    async with real_stack(url, **small) as running, AsyncExitStack() as sockets:
        told = []
        talks = [await sockets.enter_async_context(running.served.connect()) for _ in range(6)]
        for number, ws in enumerate(talks):
            told.append(await say(ws, f"number {number} sings. " * 8))
        await until(running, lambda stats: stats.tiers["disk"].stored_bytes_total > 0)
        for _round in range(2):  # more than the pool holds: some come back from a tier
            for number, ws in enumerate(talks):
                told.append(await _go_on(ws, told, number, len(talks)))
        refused = await say(talks[0], "far too long " * 100)
        assert refused["error"]["code"] == "request_too_large", refused
        await _trim(talks[0], told)
        assert all(event["type"] in ENDINGS - {"response.failed", "error"} for event in told)
        yield running, [event["response"] for event in told]


async def _go_on(ws, told, number, count):
    last = told[-count]["response"]["id"]
    return await say(ws, f"and verse {number}?", previous_response_id=last)


async def _trim(ws, told):
    """A session whose first turn is dropped, and whose KV stays."""
    last = {}
    for number in range(3):
        event = await say(ws, f"question {number}", context_management=SHIFTED, **last)
        last = {"previous_response_id": event["response"]["id"]}
        told.append(event)
