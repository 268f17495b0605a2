"""Short words for what is said and heard on a socket."""

import asyncio
import json

from websockets.exceptions import ConnectionClosed

from tests.api.schemas import validate_event
from tests.api.scripted import reply


async def say(ws, **frame):
    await ws.send(json.dumps(frame))


async def create(ws, **frame):
    await say(ws, type="response.create", **frame)


async def hear(ws):
    event = json.loads(await asyncio.wait_for(ws.recv(), 60))
    validate_event(event)
    return event


async def hear_turn(ws):
    """Events to the terminal one, or the error."""
    events = [await hear(ws)]
    while events[-1]["type"] not in {
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    }:
        events.append(await hear(ws))
    return events


def text_of(request):
    return request.input[0].text if request.input else ""


def echo(request):
    return reply("you said ", text_of(request))


async def closed(ws):
    """Read to the close; returns its code."""
    try:
        while True:
            await asyncio.wait_for(ws.recv(), 60)
    except ConnectionClosed:
        return ws.close_code
