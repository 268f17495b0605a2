"""Frames, right and wrong, on the conversation's socket and on an echo over the same protocol."""

import asyncio
import json
import tracemalloc

import pytest
from websockets.frames import Opcode

from tests.api.scripted import ScriptedService, reply
from tests.fresh_process import in_fresh_process
from tests.harness.serving import gateway_of, serving
from tests.sockets.echo import echoing
from tests.sockets.frame_cases import (
    MAX_BYTES,
    OPEN,
    SECTIONS,
    conversation,
    outcome,
    wrong_outcomes,
)
from tests.sockets.raw_peer import close, frame, raw_peer


@pytest.mark.parametrize("section", SECTIONS)
async def test_the_conversation_answers_frames_as_the_rfc_wants_it(section, caplog):
    async with conversation() as served, served.connect() as neighbour:
        assert await wrong_outcomes(served.ws_url, SECTIONS[section]) == []
        await neighbour.send('{"type": "response.create", "input": "hi"}')
        while json.loads(await neighbour.recv())["type"] != "response.completed":
            pass
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("section", SECTIONS)
async def test_the_echo_answers_frames_as_the_rfc_wants_it(section):
    async with echoing(max_frame_bytes=MAX_BYTES) as url:
        assert await wrong_outcomes(url, SECTIONS[section]) == []


async def test_it_does_not_matter_how_tcp_cuts_the_frames():
    fitting = [case for case in SECTIONS["8"] if case[2] == OPEN]
    async with conversation() as served:
        for _, frames, wanted in fitting:
            assert await outcome(served.ws_url, frames, wanted, bytewise=True) == wanted


async def test_a_message_in_fragments_is_one_and_a_ping_between_them_is_answered_at_once():
    heard = asyncio.Queue()

    def script(request):
        heard.put_nowait(request.input[0].text)
        return reply("x")

    said = "κόσμε 𝄞" * 50
    message = json.dumps({"type": "response.create", "input": said}, ensure_ascii=False).encode()
    async with (
        serving(gateway_of(ScriptedService(script))) as served,
        raw_peer(served.ws_url) as peer,
    ):
        peer.send(frame(Opcode.TEXT, message[:1], fin=False))
        for byte in message[1:-1]:  # also within a character
            peer.send(frame(Opcode.CONT, bytes([byte]), fin=False))
        assert await peer.is_answered()
        assert heard.empty()
        peer.send(frame(Opcode.CONT, message[-1:]))
        assert await asyncio.wait_for(heard.get(), 60) == said


def test_fragments_take_the_memory_of_their_bytes_and_not_of_their_number():
    held_bytes, code = in_fresh_process(memory_of_fragments)
    assert held_bytes < 2**19  # 40,000 bytes; as 20,000 objects they took more than a megabyte
    assert code == 1000


async def memory_of_fragments():
    """Traced bytes with a message half said, and the code with which it ends."""
    piece = frame(Opcode.CONT, b"xx", fin=False) * 1000
    async with conversation_of_a_megabyte() as served, raw_peer(served.ws_url) as peer:
        peer.send(frame(Opcode.TEXT, b'"', fin=False))
        assert await peer.is_answered()
        tracemalloc.start()
        for _ in range(20):
            peer.send(piece)
            assert await peer.is_answered()  # so all before it have been taken
        held_bytes, _ = tracemalloc.get_traced_memory()
        peer.send(frame(Opcode.CONT, b'"'), close(1000))
        return held_bytes, await peer.close_code()


def conversation_of_a_megabyte():
    return serving(gateway_of(ScriptedService(lambda _: reply("x")), max_frame_bytes=2**20))


async def test_a_message_in_fragments_that_grows_too_large_is_no_business_of_its_neighbours():
    async with conversation() as served, raw_peer(served.ws_url) as neighbour:
        async with raw_peer(served.ws_url) as peer:
            peer.send(frame(Opcode.TEXT, b"x" * MAX_BYTES, fin=False))
            assert await peer.is_answered()  # exactly as much as is allowed
            peer.send(frame(Opcode.CONT, b"x", fin=False))
            assert await peer.close_code() == 1009
        assert await neighbour.is_answered()
