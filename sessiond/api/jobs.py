"""Jobs of a socket's lanes: turns, replays and single events sent in order with them."""

import logging
from collections.abc import Awaitable, Callable

from sessiond.api.protocol.events import ResponseEncoder, error_event
from sessiond.api.protocol.requests import ResumeFrame
from sessiond.api.protocol.resources import Json
from sessiond.api.replay import ResponseEventEncoder, too_slow
from sessiond.domain import TurnError, TurnFinished, TurnUsage
from sessiond.errors import RequestError
from sessiond.sessions.bind import TurnBinder
from sessiond.sessions.turn import EntriesLostError, LogReplay, Turn
from sessiond.store.errors import StoreError

logger = logging.getLogger(__name__)

Emit = Callable[[Json], Awaitable[None]]


class EventJob:
    """Sends one event in lane order: an `error` never interrupts an earlier turn's events."""

    response_id: str | None = None

    def __init__(self, event: Json, emit: Emit) -> None:
        self._event = event
        self._emit = emit

    async def run(self) -> None:
        """Send the event."""
        await self._emit(self._event)

    async def abandon(self) -> None:
        """Nothing is held."""


class TurnJob:
    """Runs one turn that was bound when its frame was received."""

    def __init__(self, turns: TurnBinder, bound: Turn, stream_id: str | None, emit: Emit) -> None:
        self._turns = turns
        self._bound = bound
        self._stream_id = stream_id
        self._emit = emit
        self._started = False

    @property
    def response_id(self) -> str | None:
        """The turn's id, known before it is sent to the client."""
        return self._bound.response_id

    async def run(self) -> None:
        """Run the turn and send its events up to the terminal one."""
        self._started = True
        try:
            turn = await self._turns.run(self._bound)
        except RequestError as error:
            await self._emit(error_event(error, self._stream_id))
        except StoreError as error:
            await self._emit(error_event(database_error(error), self._stream_id))
        except Exception:
            logger.exception("turn %s could not be started", self.response_id)
            await self._emit(error_event(internal_error(), self._stream_id))
        else:
            await self._send_events(turn)

    async def abandon(self) -> None:
        """Release the turn lock if the turn never ran."""
        if not self._started:
            await self._turns.drop(self._bound)

    async def _send_events(self, turn: Turn) -> None:
        encoder = ResponseEncoder(turn.accepted, self._stream_id)
        await self._emit(encoder.created())
        try:
            async for entry in turn.entries():
                for event in encoder.encode(entry):
                    await self._emit(event)
        except Exception:
            logger.exception("turn %s was interrupted by an internal error", self.response_id)
            turn.cancel(keep=False)
            if not encoder.finished:
                for event in encoder.encode(broken_off()):
                    await self._emit(event)


class ReplayJob:
    """Replays a turn's events from where the client stopped, and follows it to its end."""

    response_id: str | None = None

    def __init__(
        self, follow: Callable[[], Awaitable[LogReplay]], frame: ResumeFrame, emit: Emit
    ) -> None:
        self._follow = follow
        self._frame = frame
        self._emit = emit

    async def run(self) -> None:
        """Send the events that the client has not received, up to the terminal one."""
        stream_id = self._frame.stream_id
        try:
            replay = await self._follow()
            self.response_id = replay.accepted.response_id
            event_encoder = ResponseEventEncoder.again(
                replay, stream_id, self._frame.starting_after
            )
            for event in event_encoder.opening_events():
                await self._emit(event)
            async for entry in replay.entries():
                for event in event_encoder.encode(entry):
                    await self._emit(event)
        except EntriesLostError:
            await self._emit(error_event(too_slow(), stream_id))
        except RequestError as error:
            await self._emit(error_event(error, stream_id))
        except Exception:
            logger.exception("response %s could not be replayed", self._frame.response_id)
            await self._emit(error_event(internal_error(), stream_id))

    async def abandon(self) -> None:
        """Nothing is held."""


def internal_error() -> RequestError:
    """Build the client's error for an internal error of the server."""
    return RequestError("internal_error", "internal server error; the session can be continued")


def database_error(error: StoreError) -> RequestError:
    """Build the client's error for a database failure; the reason goes to the log."""
    logger.warning("the database failed: %s", error)
    message = "the database is unavailable; nothing was changed"
    return RequestError("internal_error", message, retry_after_s=1)


def broken_off() -> TurnFinished:
    """Build the ending of a turn that was interrupted by an internal error."""
    fault = internal_error()
    error = TurnError(code=fault.code, message=fault.message)
    return TurnFinished(status="failed", text="", usage=TurnUsage(), error=error)


Job = EventJob | TurnJob | ReplayJob
