"""The client for peers, against a small server of chat completions."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from benchmarks.chat import ChatError
from benchmarks.http_chat import HttpChat


@asynccontextmanager
async def served(answer):
    """A server that notes each request's body and gives `answer`, raw."""
    bodies = []

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies


def event(content=None, **fields):
    choices = [] if content is None else [{"delta": {"content": content}}]
    return f"data: {json.dumps({'choices': choices} | fields)}\n\n".encode()


def chunked(*pieces):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


USAGE = event(
    usage={
        "prompt_tokens": 30,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 20},
    }
)


async def test_each_turn_resends_the_history_and_the_reply():
    parts = (event(""), event("Hi"), event(" you"), USAGE, b"data: [DONE]\n\n")
    async with served(chunked(*parts)) as (url, bodies):
        chat = HttpChat(url, ignore_eos=True)
        await chat.ask("one", 3)
        turn = await chat.ask("two", 3)
    assert [message["content"] for message in bodies[1]["messages"]] == ["one", "Hi you", "two"]
    assert bodies[1]["ignore_eos"] is True
    assert (bodies[1]["max_tokens"], bodies[1]["temperature"]) == (3, 0)
    assert (turn.input_tokens, turn.cached_tokens, turn.output_tokens) == (30, 20, 3)
    assert len(turn.text_at_s) == 2  # empty pieces are no text
    assert 0 < turn.ttft_s <= turn.text_at_s[-1] - turn.sent_at_s


async def test_an_event_may_be_split_over_chunks_and_chunks_hold_several():
    whole = event("a") + event("b") + USAGE + b"data: [DONE]\n\n"
    async with served(chunked(whole[:17], whole[17:40], whole[40:])) as (url, _):
        assert len((await HttpChat(url).ask("x", 3)).text_at_s) == 2


async def test_a_body_without_chunks_ends_with_the_connection():
    async with served(b"HTTP/1.1 200 OK\r\n\r\n" + event("a") + USAGE) as (url, _):
        assert (await HttpChat(url).ask("x", 3)).output_tokens == 3


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\ntoo long", "400.*too long"),
        (chunked(event("a"), event(error={"message": "no memory"})), "no memory"),
        (chunked(event("a"), event(usage={"completion_tokens": 2})), "3 tokens were asked for, 2"),
        (b"", "connection was lost"),
        (chunked(event("a"))[:-20], "connection was lost"),
    ],
)
async def test_a_turn_without_its_whole_reply_is_an_error(answer, why):
    async with served(answer) as (url, _):
        with pytest.raises(ChatError, match=why):
            await HttpChat(url).ask("x", 3)
