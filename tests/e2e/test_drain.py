"""Field case T44: SIGTERM to a server that writes."""

import asyncio
import json
import os
import signal

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from benchmarks.server_process import running_server
from sessiond.cli.server_api import ServerAddress

DRAIN_S = 12
FLAGS = ["--ignore-eos", "--drain-timeout-s", str(DRAIN_S)]


async def begin(ws, max_output_tokens):
    request = {"type": "response.create", "input": "Go on.", "max_output_tokens": max_output_tokens}
    await ws.send(json.dumps(request))
    while json.loads(await ws.recv())["type"] != "response.output_text.delta":
        pass


async def last_event_and_code(ws):
    event = None
    try:
        while True:
            event = json.loads(await ws.recv())
    except ConnectionClosed:
        return event, ws.close_code


async def refusal(url):
    """How a new socket is refused, as soon as one is."""
    while True:
        try:
            async with connect(url, proxy=None):
                pass
        except InvalidStatus as refused:
            return refused.response


async def test_t44_turns_end_within_the_bound_then_sockets_close_1012_and_new_ones_get_503(
    tmp_path,
):
    with running_server(tmp_path, FLAGS) as server:
        url = ServerAddress.parse(server.url).socket
        async with (
            asyncio.timeout(120),
            connect(url, proxy=None) as short,
            connect(url, proxy=None) as long,
            connect(url, proxy=None) as idle,
        ):
            await begin(long, 7000)
            await begin(short, 16)
            os.kill(server.process.pid, signal.SIGTERM)
            response = await refusal(url)
            assert response.status_code == 503
            assert json.loads(response.body)["error"]["code"] == "draining"
            assert response.headers["Retry-After"] == "1"
            event, code = await last_event_and_code(short)
            assert event["response"]["usage"]["output_tokens"] == 16
            assert code == 1012
            event, code = await last_event_and_code(long)
            assert event["type"] == "response.incomplete"
            assert event["response"]["incomplete_details"]["reason"] == "cancelled"
            assert event["response"]["output"][0]["content"][0]["text"]
            assert code == 1012
            assert await last_event_and_code(idle) == (None, 1012)
        assert await asyncio.to_thread(server.process.wait, 60) == 0
        assert "Traceback" not in server.log
