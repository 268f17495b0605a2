"""A conversation over `POST /v1/chat/completions`: the whole history is sent with every turn.

Raw HTTP/1.1 on asyncio streams: on two cores the client's own work is part of what is measured,
and is to be as small as that of the socket's client.
"""

import asyncio
import json
import time
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.chat import ChatError
from benchmarks.turn_times import TurnTimes

_MAX_LINE_BYTES = 2**24


class HttpChat:
    """One conversation. `fields` go into every request."""

    def __init__(self, url: str, **fields: Any) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._fields = fields
        self._messages: list[dict[str, str]] = []

    async def ask(self, text: str, reply_tokens: int) -> TurnTimes:
        """Run one turn.

        Raises:
            ChatError: the server refused it, or the reply has another length.
        """
        self._messages.append({"role": "user", "content": text})
        request = {
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": reply_tokens,
        }
        body = json.dumps(request | self._fields).encode()
        sent_at_s = time.perf_counter()
        reply = ""
        arrivals: list[float] = []
        usage: dict[str, Any] = {}
        async with self._posted("/v1/chat/completions", body) as lines:
            async for line in lines:
                event = json.loads(line)
                at_s = time.perf_counter()
                usage = event.get("usage") or usage
                if piece := _text(event):
                    reply += piece
                    arrivals.append(at_s)
        self._messages.append({"role": "assistant", "content": reply})
        return _times(sent_at_s, arrivals, usage, reply_tokens)

    @asynccontextmanager
    async def _posted(self, path: str, body: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        reader, writer = await asyncio.open_connection(
            self._host, self._port, limit=_MAX_LINE_BYTES
        )
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            status = answer.split()[1].decode()
            if status != "200":
                raise ChatError(f"HTTP {status}: {(await reader.read())[:300]!r}")
            yield _events(reader, chunked=b"transfer-encoding: chunked" in answer.lower())
        except (OSError, EOFError) as error:
            raise ChatError(f"the connection was lost: {error}") from error
        finally:
            writer.close()


async def _events(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    """The data of server-sent events, up to `[DONE]`. An event may span chunks."""
    rest = b""
    while piece := await (_chunk(reader) if chunked else reader.read(2**16)):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                yield data


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    """The next chunk of a chunked body (RFC 9112, section 7.1); empty at its end."""
    size = int((await reader.readline()).split(b";")[0], 16)
    data = await reader.readexactly(size + 2)
    return data[:size]


def _text(event: dict[str, Any]) -> str:
    if "error" in event:
        raise ChatError(f"the stream ended with {event['error']}")
    choices = event.get("choices") or [{}]
    text = (choices[0].get("delta") or {}).get("content")
    return text if isinstance(text, str) else ""


def _times(
    sent_at_s: float, arrivals: list[float], usage: dict[str, Any], reply_tokens: int
) -> TurnTimes:
    output_tokens = usage.get("completion_tokens", 0)
    if not arrivals or output_tokens != reply_tokens:
        raise ChatError(f"{reply_tokens} tokens were asked for, {output_tokens} came")
    return TurnTimes(
        sent_at_s=sent_at_s,
        text_at_s=tuple(arrivals),
        input_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        output_tokens=output_tokens,
    )
