"""Questions about the engine's state, whose answers are waited for only so long."""

import asyncio

from engine.client import EngineClient
from engine.errors import EngineUnavailableError
from engine.questions import Answer, Query
from sessiond.errors import RequestError


async def ask_in_time(engine: EngineClient, query: Query, timeout_s: float) -> Answer:
    """Ask; a step may take long, or hang, and whoever watches the server must not hang with it.

    Raises:
        RequestError: `engine_restarted`, there is no answer now.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await engine.ask(query)
    except (EngineUnavailableError, TimeoutError):
        message = "the engine does not answer now; it is busy with a step, or starting again"
        raise RequestError("engine_restarted", message, retry_after_s=1) from None
