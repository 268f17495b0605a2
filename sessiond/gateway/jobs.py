"""What a socket's lanes work on: turns, and events that wait for their place among them."""

import logging
from collections.abc import Awaitable, Callable

from sessiond.errors import RequestError
from sessiond.facts import TurnError, TurnFinished, TurnUsage
from sessiond.gateway.protocol.events import ResponseEncoder, error_event
from sessiond.gateway.protocol.requests import ResumeFrame
from sessiond.gateway.protocol.resources import Json
from sessiond.gateway.replaying import Telling, too_slow
from sessiond.sessions.fact_log import FactsLostError
from sessiond.sessions.replays import Replay
from sessiond.sessions.service import BoundTurn, SessionService, Turn
from sessiond.store.errors import StoreError

logger = logging.getLogger(__name__)

Emit = Callable[[Json], Awaitable[None]]


class EventJob:
    """Sends one event. An `error` never lands amid the events of an earlier turn of its lane."""

    response_id: str | None = None

    def __init__(self, event: Json, emit: Emit) -> None:
        self._event = event
        self._emit = emit

    async def run(self) -> None:
        """Send it."""
        await self._emit(self._event)

    async def abandon(self) -> None:
        """Nothing is held."""


class TurnJob:
    """Runs one turn that was bound when its frame came."""

    def __init__(
        self, service: SessionService, bound: BoundTurn, stream_id: str | None, emit: Emit
    ) -> None:
        self._service = service
        self._bound = bound
        self._stream_id = stream_id
        self._emit = emit
        self._started = False

    @property
    def response_id(self) -> str | None:
        """The turn's id, known before the client is told it."""
        return self._bound.response_id

    async def run(self) -> None:
        """Run the turn and send its events, to the terminal one."""
        self._started = True
        try:
            turn = await self._service.run(self._bound)
        except RequestError as error:
            await self._emit(error_event(error, self._stream_id))
        except StoreError as error:
            await self._emit(error_event(database_error(error), self._stream_id))
        except Exception:
            logger.exception("turn %s could not be started", self.response_id)
            await self._emit(error_event(internal_error(), self._stream_id))
        else:
            await self._tell(turn)

    async def abandon(self) -> None:
        """Give the place back if the turn never ran."""
        if not self._started:
            await self._service.drop(self._bound)

    async def _tell(self, turn: Turn) -> None:
        encoder = ResponseEncoder(turn.accepted, self._stream_id)
        await self._emit(encoder.created())
        try:
            async for fact in turn.facts():
                for event in encoder.encode(fact):
                    await self._emit(event)
        except Exception:
            logger.exception("turn %s broke off", self.response_id)
            turn.cancel(keep=False)
            if not encoder.finished:
                for event in encoder.encode(broken_off()):
                    await self._emit(event)


class ReplayJob:
    """Tells a turn again, from where the client had got to, and follows it to its end."""

    response_id: str | None = None

    def __init__(
        self, follow: Callable[[], Awaitable[Replay]], frame: ResumeFrame, emit: Emit
    ) -> None:
        self._follow = follow
        self._frame = frame
        self._emit = emit

    async def run(self) -> None:
        """Send the events that the client has not had, to the terminal one."""
        stream_id = self._frame.stream_id
        try:
            replay = await self._follow()
            self.response_id = replay.accepted.response_id
            telling = Telling.again(replay, stream_id, self._frame.starting_after)
            for event in telling.beginning():
                await self._emit(event)
            async for fact in replay.facts():
                for event in telling.encode(fact):
                    await self._emit(event)
        except FactsLostError:
            await self._emit(error_event(too_slow(), stream_id))
        except RequestError as error:
            await self._emit(error_event(error, stream_id))
        except Exception:
            logger.exception("response %s could not be told again", self._frame.response_id)
            await self._emit(error_event(internal_error(), stream_id))

    async def abandon(self) -> None:
        """Nothing is held."""


def internal_error() -> RequestError:
    """What a client is told of a fault of ours."""
    return RequestError("internal_error", "the server met a fault; the session goes on")


def database_error(error: StoreError) -> RequestError:
    """What a client is told when the database failed; why is for the log."""
    logger.warning("the database failed: %s", error)
    message = "the database can't be used just now; nothing was changed"
    return RequestError("internal_error", message, retry_after_s=1)


def broken_off() -> TurnFinished:
    """The ending of a turn whose events broke off by a fault of ours."""
    fault = internal_error()
    error = TurnError(code=fault.code, message=fault.message)
    return TurnFinished(status="failed", text="", usage=TurnUsage(), error=error)


Job = EventJob | TurnJob | ReplayJob
