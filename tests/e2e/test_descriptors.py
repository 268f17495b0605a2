"""R01: a server with few file descriptors and very many peers that say nothing."""

import contextlib
import json
import socket

import pytest
from websockets.sync.client import connect

from benchmarks.server_process import running_server

pytestmark = pytest.mark.serial

FILES, PEERS = 64, 500
MOST_LOGGED = 10_000  # bytes in the minute that this takes at most


def turn(ws) -> tuple[str, int]:
    """One turn's text and tokens."""
    ws.send(
        json.dumps(
            {
                "type": "response.create",
                "input": "Count from one to ten.",
                "temperature": 0,
                "max_output_tokens": 24,
            }
        )
    )
    while (event := json.loads(ws.recv(timeout=300)))["type"] not in (
        "response.completed",
        "response.incomplete",
    ):
        assert event["type"] not in ("error", "response.failed"), event
    text = event["response"]["output"][0]["content"][0]["text"]
    return text, event["response"]["usage"]["output_tokens"]


def silent_peer(port: int) -> socket.socket:
    """Connected, or refused, or cut: it says nothing in any case."""
    peer = socket.socket()
    peer.settimeout(5)
    with contextlib.suppress(OSError):
        peer.connect(("127.0.0.1", port))
    return peer


def test_r01_silent_peers_without_number_take_nothing_from_an_open_socket(tmp_path) -> None:
    with running_server(tmp_path, files=FILES) as server:
        port = int(server.url.rpartition(":")[2])
        url = server.url.replace("http", "ws") + "/v1/responses"
        with connect(url) as ws, contextlib.ExitStack() as peers:
            calm = turn(ws)
            logged = len(server.log)
            for _ in range(PEERS):
                peers.callback(silent_peer(port).close)
            assert turn(ws) == calm
            assert server.get("/health/live"), "who does send a request is answered"
            with connect(url) as other:
                assert turn(other) == calm
            assert len(server.log) - logged < MOST_LOGGED
        assert "Traceback" not in server.log
        assert "before they sent a request" in server.log
