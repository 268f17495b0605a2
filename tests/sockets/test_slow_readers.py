"""Field case T42: clients that stop reading are bounded, and nobody else's business."""

import asyncio
import gc
import json
import threading
from contextlib import AsyncExitStack

from websockets.frames import Opcode

from sessiond.api.socket import SocketConnection
from tests.api.hooks import Submits
from tests.sockets.raw_peer import frame, make_small, raw_peer

SLOW = 64
REPLY = 400  # tokens of a slow reader
FAST = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 4  # capitals, which no slow reply has
MANY_SLOTS = {"max_num_seqs": SLOW + 1, "max_num_batched_tokens": 512, "num_speculative_tokens": 0}
MAX_OUTBOUND = 8
WRONG = frame(Opcode.TEXT, b"{}") * 300  # as many errors fill all that a small socket takes


def create(text, max_output_tokens):
    pairs = {"type": "response.create", "input": text, "max_output_tokens": max_output_tokens}
    return frame(Opcode.TEXT, json.dumps(pairs).encode())


async def next_event(peer):
    while (found := await peer.next()).opcode is not Opcode.TEXT:
        pass
    return json.loads(found.data)


async def events_to_the_end(peer):
    events = [await next_event(peer)]
    while events[-1]["type"] not in {"response.completed", "response.incomplete"}:
        events.append(await next_event(peer))
    return events


def text_of(events):
    deltas = [one["delta"] for one in events if one["type"] == "response.output_text.delta"]
    return deltas, "".join(deltas)


class DrawLog:
    """In which step each capital was drawn, and how many sequences that step had."""

    def __init__(self, model):
        self.steps = []
        self.batches = []
        execute = model.execute

        def logged(batch):
            drawn = execute(batch)
            capitals = [token for token in drawn if token in FAST]
            self.steps += [model.steps] * len(capitals)
            self.batches += [len(batch)] * len(capitals)
            return drawn

        model.execute = logged

    def gaps(self):
        return [after - before for before, after in zip(self.steps, self.steps[1:], strict=False)]


async def fast_turn(running, peer, submits):
    """Run a turn to its end, from a model that is held until the engine knows it.

    Returns the steps between tokens, and these steps' batches.
    """
    known = submits.count
    log = DrawLog(running.model)
    running.model.script(list(FAST))
    peer.send(create("I read. " * 40, len(FAST)))  # longer than the others: it starts the last
    while (await next_event(peer))["type"] != "response.created":
        pass
    await submits.reach(known + 1)
    running.model.gate.set()
    assert text_of(await events_to_the_end(peer))[1] == FAST.decode()
    return log.gaps(), list(log.batches)


async def block(running, peers):
    """Let each begin a reply and read none of it: the server can write to none any more."""

    async def begin(peer):
        peer.send(create("I do not read", REPLY))
        while (await next_event(peer))["type"] != "response.created":
            pass
        peer.writer.transport.pause_reading()
        peer.send(WRONG)

    for _ in peers:
        running.model.script([120] * REPLY)
    await asyncio.gather(*map(begin, peers))
    slow = [one for one in running.served.server.server_state.connections if is_small(one)]
    assert len(slow) == len(peers)
    async with asyncio.timeout(60):
        while any(one.writable.is_set() for one in slow):  # noqa: ASYNC110 -- uvicorn tells nobody
            await asyncio.sleep(0.01)
    return slow


def is_small(connection):
    return connection.transport.get_write_buffer_limits()[1] == 1024


def make_all_small(running):
    for connection in running.served.server.server_state.connections:
        make_small(connection)


async def test_t42_64_slow_readers_change_no_other_streams_steps_between_tokens(stack):
    options = {"engine_config": MANY_SLOTS, "num_blocks": 16_384}
    limits = {"max_outbound_events": MAX_OUTBOUND, "send_timeout_s": 120, "ping_interval_s": 600}
    of_others = live_sockets()  # what earlier tests have left for the garbage collector
    async with stack(**options, **limits) as running, AsyncExitStack() as sockets:
        ws_url = running.served.ws_url
        peers = [
            await sockets.enter_async_context(raw_peer(ws_url, receive_buffer=4096))
            for _ in range(SLOW)
        ]
        make_all_small(running)
        fast = await sockets.enter_async_context(raw_peer(ws_url))
        submits = Submits(running)
        hold(running)
        calm, _ = await fast_turn(running, fast, submits)
        hold(running)
        slow = await block(running, peers)
        await submits.reach(1 + SLOW)
        beside, batches = await fast_turn(running, fast, submits)
        assert beside == calm == [1] * (len(FAST) - 1)
        assert set(batches[1:]) == {SLOW + 1}  # all wrote all the while
        while (await running.stats()).running:  # noqa: ASYNC110 -- asks the engine's thread
            await asyncio.sleep(0.01)
        assert_bounded(slow, of_others)
        for peer in peers:
            peer.writer.transport.resume_reading()
        for events in await asyncio.gather(*map(events_to_the_end, peers)):
            deltas, text = text_of(events)  # who reads again is told everything, in few words
            assert text == "x" * REPLY
            assert len(deltas) < REPLY / 10


def hold(running):
    running.model.gate = threading.Event()


def live_sockets():
    # by type: `isinstance` asks lazy objects of torch what they are, and they warn
    return [one for one in gc.get_objects() if type(one) is SocketConnection]


def assert_bounded(slow, of_others):
    for connection in slow:
        assert connection.transport.get_write_buffer_size() < 2**16
    sockets = [one for one in live_sockets() if all(one is not other for other in of_others)]
    assert len(sockets) == SLOW + 1
    assert max(one._outbound.qsize() for one in sockets) <= MAX_OUTBOUND  # noqa: SLF001 -- how much waits there


async def test_t42_who_reads_nothing_is_closed_1013_and_its_blocks_come_back(stack):
    limits = {"max_outbound_events": MAX_OUTBOUND, "send_timeout_s": 0.2, "ping_interval_s": 600}
    async with (
        stack(num_blocks=64, **limits) as running,
        raw_peer(running.served.ws_url, receive_buffer=4096) as peer,
    ):
        make_all_small(running)
        submits = Submits(running)
        hold(running)
        await block(running, [peer])
        await submits.reach(1)
        running.model.gate.set()
        await running.idle()  # the turn was cut
        peer.writer.transport.resume_reading()
        assert await peer.close_code() == 1013
