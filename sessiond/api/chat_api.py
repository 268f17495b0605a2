"""`/v1/chat/completions`: turns of clients that resend their whole history."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from sessiond.api.http import caller_of, read_body
from sessiond.api.parts import Gateway
from sessiond.api.protocol.chat import ChatEncoder, decode_chat_body
from sessiond.api.refusal import json_response
from sessiond.api.turn_stream import EventStream, data_only, play, response_headers

DONE = b"data: [DONE]\n\n"


class ChatApi:
    """Create completions."""

    def __init__(self, gateway: Gateway) -> None:
        self._limits = gateway.limits
        self._engine = gateway.engine
        self._turns = gateway.sessions.turns
        self._drain_rate = gateway.sessions.drain_rate

    def routes(self) -> list[BaseRoute]:
        """List the routes."""
        return [Route("/v1/chat/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response | ASGIApp:
        """`POST /v1/chat/completions`: JSON, or chunks with `stream`."""
        caller = caller_of(request)
        body = decode_chat_body(await read_body(request, self._limits.max_body_bytes))
        bound = await self._turns.bind_chat(caller, body.request)
        turn = await self._turns.run(bound)
        encoder = ChatEncoder(
            turn.accepted,
            fingerprint=self._engine.info.fingerprint,
            include_usage=body.include_usage,
        )
        if body.stream:
            return EventStream(turn, self._limits, encoder, write=data_only, last=DONE)
        await play(turn, encoder, request, self._drain_rate)
        return json_response(encoder.completion(), headers=response_headers(turn, request))
