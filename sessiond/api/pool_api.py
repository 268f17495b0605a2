"""`/admin/pool`: state and owner of each block of the device's pool, for admins."""

from base64 import b64encode
from typing import cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.ipc.client import GetPool, PoolMap
from sessiond.api.parts import Gateway
from sessiond.api.refusal import json_response
from sessiond.sessions.queries import ask_in_time


class PoolApi:
    """Sends one query to the engine per request, for any number of blocks and sessions."""

    def __init__(self, gateway: Gateway) -> None:
        self._engine, self._ask_timeout_s = gateway.engine, gateway.limits.ask_timeout_s

    def routes(self) -> list[BaseRoute]:
        """List the route."""
        return [Route("/admin/pool", self.read, methods=["GET"])]

    async def read(self, request: Request) -> Response:  # noqa: ARG002 -- Starlette's signature
        """`GET /admin/pool`: a letter and the owner's index per block, packed."""
        answer = await ask_in_time(self._engine, GetPool(), self._ask_timeout_s)
        pool = cast("PoolMap", answer)
        return json_response(
            {
                "object": "pool",
                "block_size": self._engine.info.block_size,
                "kv_bytes_per_block": self._engine.info.kv_bytes_per_token
                * self._engine.info.block_size,
                "total_blocks": len(pool.states),
                "states": pool.states.decode(),
                "owners": b64encode(pool.owners).decode(),
                "sessions": pool.sessions,
            }
        )
