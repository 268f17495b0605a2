"""Queries of the engine's state with a timeout."""

import asyncio

from engine.errors import EngineUnavailableError
from engine.ipc.client import EngineClient
from engine.ipc.queries import Query, QueryResult
from sessiond.errors import RequestError


async def ask_in_time(engine: EngineClient, query: Query, timeout_s: float) -> QueryResult:
    """Query the engine; a long or hanging step must not block monitoring.

    Raises:
        RequestError: `engine_restarted`, the engine did not answer in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await engine.ask(query)
    except (EngineUnavailableError, TimeoutError):
        message = "the engine does not answer: it runs a long step or is restarting"
        raise RequestError("engine_restarted", message, retry_after_s=1) from None
