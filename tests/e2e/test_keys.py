"""A whole server with keys and the real model: tenants apart, and a key revoked beside it."""

import json
import subprocess
import sys
import time

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from benchmarks.server_process import ServerProcess
from sessiond.cli.server_api import ServerAddress

PROMPT = "Name three colours that I could paint my boat with, one per line, and say why. " * 4
ANNS = "Nobody but Ann says this: " + "one two three four five six seven. " * 8


class Users:
    """`sessiond user` on a server's database, in processes of its own."""

    def __init__(self, folder):
        self._db = ["--db", f"sqlite+aiosqlite:///{folder / 'sessiond.db'}"]

    def __call__(self, *words):
        command = [sys.executable, "-m", "sessiond", "user", *words, *self._db]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("keyed")


@pytest.fixture(scope="module")
def users(folder):
    return Users(folder)


@pytest.fixture(scope="module")
def server(folder, users):
    users("add", "ann", "--no-key")
    users("add", "bob", "--no-key")
    server = ServerProcess(folder, ["--auth", "keys", "--kv-cache-memory", "256MiB"])
    server.start()
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log, server.log
    assert "sk-" not in server.log
    assert "Nobody but Ann" not in server.log  # the engine's process writes there, too


def socket(server, key):
    address = ServerAddress.parse(server.url, key)
    return connect(address.socket, additional_headers=address.headers, proxy=None, compression=None)


def ask(ws, text, **fields):
    """One turn; its response object."""
    frame = {"type": "response.create", "input": text, "temperature": 0, "max_output_tokens": 8}
    ws.send(json.dumps(frame | fields))
    while True:
        event = json.loads(ws.recv(timeout=60))
        assert event["type"] not in {"error", "response.failed"}, event
        if event["type"] in {"response.completed", "response.incomplete"}:
            return event["response"]


def close_code(ws):
    """Read to the close."""
    try:
        while True:
            ws.recv(timeout=60)
    except ConnectionClosed as closed:
        return closed.rcvd.code


def cached(response):
    return response["usage"]["input_tokens_details"]["cached_tokens"]


def test_a_users_own_prefix_hits_and_anothers_never_also_after_a_restart(server, users):
    ann, bob = users("key", "add", "ann"), users("key", "add", "bob")
    second = users("key", "add", "ann")
    with socket(server, ann) as ws:
        assert cached(ask(ws, PROMPT)) == 0
    with socket(server, bob) as ws:  # not even the default system prompt
        assert cached(ask(ws, PROMPT)) == 0
    with socket(server, second) as ws:
        one = ask(ws, PROMPT)
        assert cached(one) >= one["usage"]["input_tokens"] - 16
        assert cached(ask(ws, ANNS)) <= 16  # the default system prompt
    server.stop()
    server.start()
    with socket(server, ann) as ws:
        assert ask(ws, "And a fourth?", previous_response_id=one["id"])["status"] != "failed"
        again = ask(ws, ANNS)
        assert cached(again) >= again["usage"]["input_tokens"] - 16, "from the disk tier"
    with socket(server, bob) as ws:
        assert cached(ask(ws, ANNS)) <= 16, "his own system prompt"
        ws.send(json.dumps({"type": "response.create", "previous_response_id": one["id"]}))
        refused = json.loads(ws.recv(timeout=60))
        assert refused["error"]["code"] == "previous_response_not_found"


def test_a_key_that_the_command_line_revokes_loses_its_socket_within_a_second(server, users):
    key, other = users("key", "add", "ann"), users("key", "add", "bob")
    with socket(server, key) as ws, socket(server, other) as neighbour:
        frame = {"type": "response.create", "input": "Count to 1000.", "max_output_tokens": 4000}
        ws.send(json.dumps(frame))
        assert json.loads(ws.recv(timeout=60))["type"] == "response.created"
        users("key", "revoke", key.partition(".")[0].removeprefix("sk-"))
        revoked_at = time.monotonic()
        assert close_code(ws) == 1008
        assert time.monotonic() - revoked_at < 60.0  # half a second, on a machine that is busy
        assert ask(neighbour, "Hello")["status"] in {"completed", "incomplete"}
