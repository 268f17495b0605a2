"""Every way in which a client can go, and what is left afterwards: nothing."""

import json
import signal
import socket

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State
from websockets.uri import parse_uri

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from benchmarks.texts import prose
from tests.e2e.support import (
    BLOCK,
    assert_all_blocks_come_back,
    held_blocks,
    total,
    total_input,
    wait_until,
)

GREEDY = {"temperature": 0}
LONG_TASK = "Count from 1 to 500, one number per line."


def vanish(client):
    """Drop the connection without a closing handshake."""
    client.socket.transport.abort()


async def one_more(client, turn):
    assert turn.end is None, turn.end
    turn.feed(await client.socket.recv(), at_s=0.0)


async def until_text(client, turn):
    while not turn.text:
        await one_more(client, turn)


async def test_disconnect_in_prefill_gives_everything_back(server):
    long_text = "word " * 3000
    async with LoadClient(server.url, **GREEDY) as client:
        await client.send(long_text, max_output_tokens=8)
        while json.loads(await client.socket.recv())["type"] != "response.in_progress":
            pass
        vanish(client)
    assert_all_blocks_come_back(server)


async def test_disconnect_in_decode_gives_everything_back(server):
    async with LoadClient(server.url, **GREEDY) as client:
        turn = await client.send(LONG_TASK, max_output_tokens=1000)
        await until_text(client, turn)
        vanish(client)
    assert_all_blocks_come_back(server)


def open_without_pongs(server, request):
    """A peer as after a pulled cable: it sent a turn, and is never heard of again."""
    host, port = server.url.removeprefix("http://").split(":")
    peer = socket.create_connection((host, int(port)))
    client = ClientProtocol(parse_uri(f"ws://{host}:{port}/v1/responses"))
    client.send_request(client.connect())
    peer.sendall(b"".join(client.data_to_send()))
    while client.state is not State.OPEN:
        client.receive_data(peer.recv(4096))
    client.send_text(json.dumps(request).encode())
    peer.sendall(b"".join(client.data_to_send()))
    return peer


async def test_half_open_socket_is_noticed_by_its_missing_pongs(tmp_path):
    flags = ["--ping-interval-s", "2", "--ping-timeout-s", "2"]
    request = {"type": "response.create", "input": LONG_TASK, "max_output_tokens": 1000}
    with running_server(tmp_path / "half-open", flags) as server:
        peer = open_without_pongs(server, request)
        wait_until(lambda: held_blocks(server))
        assert_all_blocks_come_back(server)
        peer.close()


async def test_cancel_stops_within_a_step_and_the_partial_reply_stays(server):
    async with LoadClient(server.url, **GREEDY) as client:
        turn = await client.send(LONG_TASK, max_output_tokens=1000)
        await until_text(client, turn)
        await client.socket.send(json.dumps({"type": "response.cancel"}))
        await client.finish(turn)
        assert (turn.end.outcome, turn.end.detail) == ("incomplete", "cancelled")
        assert turn.end.stats.output_tokens < 500
        after = (await client.ask("Go on.", max_output_tokens=4)).end.stats
        assert abs(after.reused_tokens - total(turn)) <= BLOCK
    assert_all_blocks_come_back(server)


async def text_of_exactly(client, tokens, *, about, after=None):
    """A task that brings a long reply, and makes its turn's input so many tokens longer.

    Each " go" is one token; what the rest is worth is found out by a turn that is left behind.
    """
    probe = await client.ask(f"{about} {LONG_TASK}", max_output_tokens=1)
    client.tip = after.end.tip if after else None
    missing = tokens - (total_input(probe) - (total(after) if after else 0))
    assert missing >= 0
    return f"{about}{' go' * missing} {LONG_TASK}"


@pytest.mark.parametrize("how", ["disconnect", "cancel"])
async def test_t03_a_cut_turn_is_as_if_it_had_never_been(server, how):
    """Turn 0: 512 tokens and a reply. Turn 1: 64 more, cut after a text. Turn 2: 64 at once.

    The reply has 48 tokens, or fewer if the model stops there on this instruction set.
    """
    async with LoadClient(server.url, **GREEDY) as client:
        first_text = await text_of_exactly(client, 512, about=prose(400))
        zero = await client.ask(first_text, max_output_tokens=48)
        assert total_input(zero) == 512
        assert 0 < zero.end.stats.output_tokens <= 48
        new_text = await text_of_exactly(client, 64, about="Once more.", after=zero)
        one = await client.send(new_text, max_output_tokens=200)
        await until_text(client, one)
        if how == "cancel":
            cancel = {"type": "response.cancel", "response_id": one.response_id, "keep": False}
            await client.socket.send(json.dumps(cancel))
            await client.finish(one)
            client.tip = zero.end.tip
            two = await client.ask(new_text, max_output_tokens=4)
        else:
            vanish(client)
    if how == "disconnect":
        async with LoadClient(server.url, **GREEDY) as client:
            client.tip = zero.end.tip
            two = await client.ask(new_text, max_output_tokens=4)
    assert total_input(two) == total(zero) + 64
    assert two.end.stats.reused_tokens >= total(zero) - BLOCK
    assert_all_blocks_come_back(server)


async def test_t24_reply_ids_are_never_retokenised(server):
    """Turn 2 reuses all earlier tokens, whatever the reply would be if it were encoded again."""
    async with LoadClient(server.url, temperature=2.0, max_output_tokens=64) as client:
        previous = None
        for seed in range(4):
            turn = await client.ask("Say anything, in any script: 你好 🙂", seed=seed)
            if previous is not None:
                kept = total(previous)
                assert kept - BLOCK <= turn.end.stats.reused_tokens <= kept + BLOCK
            previous = turn
    assert_all_blocks_come_back(server)


async def test_sigterm_finishes_the_running_turn_and_closes_with_1012(tmp_path):
    with running_server(tmp_path / "drained") as server:
        async with LoadClient(server.url, **GREEDY) as client:
            turn = await client.send(LONG_TASK, max_output_tokens=20)
            await until_text(client, turn)
            server.process.send_signal(signal.SIGTERM)
            await client.finish(turn)
            assert turn.end.outcome in ("completed", "incomplete")
            with pytest.raises(ConnectionClosed) as closed:
                await client.socket.recv()
        assert closed.value.rcvd.code == 1012
        assert server.process.wait(timeout=60) == 0
