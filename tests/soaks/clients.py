"""Clients that talk for a while and leave in every way there is: at random, from a seed."""

import asyncio
import json
from dataclasses import dataclass, field

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

ENDINGS = ("response.completed", "response.incomplete", "response.failed", "error")
WAYS = ("read", "vanish", "vanish_at_once", "cancel", "roll_back", "close")
WEIGHTS = (64, 10, 8, 6, 6, 6)


@dataclass
class Counts:
    """Turns sent, by what was done with them."""

    wanted: int
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))

    @property
    def sent(self):
        return sum(self.done.values())


class Client:
    """One after the other, sockets with some turns each. `fields` go into every request."""

    def __init__(self, url, counts, random, **fields):
        self._url = url
        self._tally = counts
        self._random = random
        self._fields = fields
        self._tips = []  # of conversations that were left, to be taken up or forked again

    async def run(self, until):
        """Go on until so many turns have been sent by all."""
        while self._tally.sent < until:
            async with connect(self._url, proxy=None, compression=None) as socket:
                await self._talk(socket, until)

    async def _talk(self, socket, until):
        random = self._random
        tip = random.choice(self._tips) if self._tips and random.random() < 0.3 else None
        session = None
        volatile = tip is None and random.random() < 0.15
        for _ in range(random.randint(1, 8)):
            if self._tally.sent >= until:
                return
            way = random.choices(WAYS, WEIGHTS)[0]
            self._tally.done[way] += 1
            await socket.send(json.dumps(self._request(tip, volatile=volatile)))
            try:
                event = await self._follow(socket, way)
            except ConnectionClosed:
                return
            if event is None:
                return
            if event["type"] == "error":
                tip = None  # of a session that is gone, or is busy with a turn that is being cut
                continue
            response = event["response"]
            session = response["conversation"]["id"]
            if way != "roll_back" and event["type"] != "response.failed":
                tip = response["id"]
            if way == "close":
                await socket.send(json.dumps({"type": "session.close", "session": session}))
                tip = None
        if tip is not None and not volatile:
            self._tips = [*self._tips[-3:], tip]

    def _request(self, tip, *, volatile):
        random = self._random
        text = "".join(random.choices("abcdefgh ", k=random.randint(1, 120)))
        request = {"type": "response.create", "input": text, **self._fields}
        if tip is not None:
            request["previous_response_id"] = tip
        if volatile:
            request["store"] = False
        return request

    async def _follow(self, socket, way):
        """The event that ended the turn; None: this client has left."""
        if way == "vanish_at_once":
            socket.transport.abort()
            return None
        patience = self._random.randint(1, 12) if way in ("vanish", "cancel", "roll_back") else 0
        while True:
            event = json.loads(await socket.recv())
            if event["type"] in ENDINGS:
                return event
            patience -= 1
            if patience == 0 and way == "vanish":
                socket.transport.abort()
                return None
            if patience == 0:
                cancel = {"type": "response.cancel", "keep": way == "cancel"}
                await socket.send(json.dumps(cancel))


async def talk(clients, until):
    """Let all of them talk at once until so many turns have been sent."""
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(until))
