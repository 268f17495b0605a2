"""People with keys on a whole stack, and short words for what they do."""

import asyncio
import contextlib
import json
from dataclasses import dataclass

import httpx
from websockets.exceptions import ConnectionClosed

from tests.api.schemas import validate_event
from tests.harness.stack import MODEL, Stack

ENDINGS = {"response.completed", "response.incomplete", "response.failed", "error"}


@dataclass
class Person:
    """A user with one key."""

    running: Stack
    id: str
    key_id: str
    key: str

    @classmethod
    async def join(cls, running, name, role="user"):
        accounts = running.served.gateway.accounts
        user, issued = await accounts.add_user("test", name, role, with_key=True)
        return cls(running, user.id, issued.key.id, issued.key.text)

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.key}"}

    def http(self):
        return httpx.AsyncClient(
            base_url=self.running.served.http_url,
            headers=self.headers,
            trust_env=False,
            timeout=60,
        )

    @contextlib.asynccontextmanager
    async def socket(self, **options):
        async with self.running.served.connect(
            **{"additional_headers": self.headers, **options}
        ) as ws:
            yield Line(ws)

    async def chat(self, *texts, **fields):
        """A conversation over HTTP; returns its responses."""
        responses = []
        async with self.http() as http:
            for text in texts:
                body = {"model": MODEL, "input": text, "max_output_tokens": 16, **fields}
                if responses:
                    body["previous_response_id"] = responses[-1]["id"]
                answer = await http.post("/v1/responses", json=body)
                assert answer.status_code == 200, answer.text
                responses.append(answer.json())
        return responses


class Line:
    """One end of a socket."""

    def __init__(self, ws):
        self.ws = ws

    async def say(self, **frame):
        await self.ws.send(json.dumps(frame))

    async def create(self, text, **fields):
        await self.say(type="response.create", model=MODEL, input=text, **fields)

    async def hear(self, *kinds):
        """Read to the first event of these kinds; of any kind when none is named."""
        while True:
            event = json.loads(await asyncio.wait_for(self.ws.recv(), 60))
            validate_event(event)
            if not kinds or event["type"] in kinds:
                return event

    async def turn(self, text, **fields):
        await self.create(text, **{"max_output_tokens": 16, **fields})
        return await self.hear(*ENDINGS)

    async def closed(self):
        """Read to the close; returns its code."""
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionClosed):
                while True:  # a client that does not read hears of no close
                    await self.ws.recv()
        return self.ws.close_code


def cached_tokens(response):
    return response["usage"]["input_tokens_details"]["cached_tokens"]
