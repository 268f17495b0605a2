"""`GET /v1/responses` (Upgrade): the conversation over a socket. Asyncio thread only.

Reader, writer and each lane are separate tasks: uvicorn reads no pong while a message waits to be
received, so a reader that also generated would miss pongs and be closed.
"""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import assert_never

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from sessiond.api.access import Admission, admission_of
from sessiond.api.auth import choose_subprotocol
from sessiond.api.http import session_header
from sessiond.api.jobs import EventJob, Job, ReplayJob, TurnJob, database_error, internal_error
from sessiond.api.lanes import Lanes
from sessiond.api.parts import Gateway
from sessiond.api.protocol.events import error_event, session_closed_event, session_updated_event
from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.requests import (
    CancelFrame,
    ClientFrame,
    CloseFrame,
    CreateFrame,
    ResumeFrame,
    UpdateFrame,
    decode_frame,
    lane_of,
)
from sessiond.api.protocol.resources import Json
from sessiond.api.refusal import error_response
from sessiond.domain import AttachmentId
from sessiond.errors import RequestError
from sessiond.sessions.turn import LogReplay, Turn
from sessiond.store.errors import StoreError

logger = logging.getLogger(__name__)

NOT_ALLOWED = 1008
GOING_AWAY_FOR_RESTART = 1012
TRY_AGAIN_LATER = 1013
INTERNAL_FAULT = 1011


@dataclass(frozen=True, slots=True)
class SocketEnded:
    """How a socket ends. `close_code` is None if the peer is gone.

    A value, not an exception: an exception group refers to stack frames, so the socket's memory
    would stay until a garbage collection.
    """

    close_code: int | None
    reason: str


_FAULT = SocketEnded(INTERNAL_FAULT, "internal server error")


class SocketEndpoint:
    """Accepts sockets, or refuses them by a denial response."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._connections = gateway.connections
        self._quotas = gateway.sessions.quotas

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one socket from handshake to close."""
        offered = websocket.scope["subprotocols"]
        try:
            self._connections.refuse_if_draining()
            subprotocol = choose_subprotocol(offered)
            admission = admission_of(websocket.scope)
        except RequestError as error:
            await websocket.send_denial_response(error_response(error))
            return
        rates = await self._rate_headers(admission.caller.user_id)
        await websocket.accept(subprotocol, [*session_header(websocket.scope), *rates])
        await SocketConnection(self._gateway, websocket, admission).run()

    async def _rate_headers(self, user_id: str) -> list[tuple[bytes, bytes]]:
        """Build the rate-limit headers; none if the quota can't be read: no reason to refuse."""
        try:
            headers = await self._quotas.headers(user_id)
        except Exception:
            logger.exception("the caller's quota cannot be read")
            return []
        return [(name.encode(), value.encode()) for name, value in headers.items()]


class SocketConnection:
    """One accepted socket: its tasks, its queue of events, its sessions' attachment."""

    def __init__(self, gateway: Gateway, websocket: WebSocket, admission: Admission) -> None:
        self._limits = gateway.limits
        self._connections = gateway.connections
        sessions = gateway.sessions
        self._turns, self._followers = sessions.turns, sessions.followers
        self._conversations, self._settings = sessions.conversations, sessions.settings
        self._housekeeping, self._drain_rate = sessions.housekeeping, sessions.drain_rate
        self._websocket = websocket
        self._caller = admission.caller
        self._revoked = admission.revoked
        self._attachment = AttachmentId(gateway.new_id("sock"))
        # when full, lanes wait and deltas merge; without progress the writer closes with 1013
        self._outbound: asyncio.Queue[Json] = asyncio.Queue(gateway.limits.max_outbound_events)
        self._ended: SocketEnded | None = None
        self._reading = asyncio.timeout(None)  # cancelled by `_end`, like the other tasks
        self._others: list[asyncio.Task[None]] = []  # the writer, waits for drain and key
        self._lanes: Lanes[Job] | None = None

    async def run(self) -> None:
        """Serve until either side ends the socket, then detach its sessions and close it."""
        with self._connections.joined() as leave:
            self._housekeeping.attach(self._attachment)
            try:
                ended = await self._serve(leave)
            finally:
                await self._housekeeping.detach(self._attachment)
            if ended.close_code is not None:
                await self._close(ended.close_code, ended.reason)

    async def _serve(self, leave: asyncio.Event) -> SocketEnded:
        lanes: Lanes[Job] | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                limits = self._limits
                lanes = Lanes(tasks, max_lanes=limits.max_lanes, max_jobs=limits.max_lane_frames)
                others = [self._write(), self._leave(leave, lanes), self._watch_key()]
                self._lanes, self._others = lanes, [tasks.create_task(other) for other in others]
                await self._read_until_cut(lanes)
                self._cut()  # also tasks that the last frame started
        except* Exception:
            logger.exception("an internal error ended a socket")
        self._lanes, self._others = None, []  # breaks reference cycles
        for job in lanes.all_jobs() if lanes is not None else ():
            await job.abandon()
        return self._ended or _FAULT

    def _end(self, close_code: int | None, reason: str) -> None:
        """End all tasks of the socket now. The first call's code and reason are kept."""
        if self._ended is None:
            self._ended = SocketEnded(close_code, reason)
            self._reading.reschedule(0)  # the reader may first have to finish a transaction
            self._cut()

    def _cut(self) -> None:
        if self._lanes is not None:
            self._lanes.cancel()
        for task in self._others:
            task.cancel()

    async def _read_until_cut(self, lanes: Lanes[Job]) -> None:
        try:
            async with self._reading:
                await self._read(lanes)
        except TimeoutError:
            if not self._reading.expired():  # not cancelled by `_end`: an internal error
                raise
        finally:
            self._ended = self._ended or _FAULT

    async def _read(self, lanes: Lanes[Job]) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._housekeeping.leave(self._attachment)  # before tasks end and rows are written
                self._end(None, f"closed by the peer: {message.get('code')}")
                return
            await self._handle(message.get("text"), lanes)

    async def _handle(self, text: str | None, lanes: Lanes[Job]) -> None:
        stream_id: str | None = None
        try:
            pairs = _parse(text)
            stream_id = lane_of(pairs)
            await self._act(decode_frame(pairs), lanes)
        except RequestError as error:
            await self._refuse(error, stream_id, lanes)
        except StoreError as error:
            await self._refuse(database_error(error), stream_id, lanes)
        except Exception:
            logger.exception("an internal error occurred while a frame was handled")
            await self._refuse(internal_error(), stream_id, lanes)

    async def _refuse(self, error: RequestError, stream_id: str | None, lanes: Lanes[Job]) -> None:
        event = error_event(error, stream_id)
        if lanes.has_room(stream_id):
            lanes.put(stream_id, EventJob(event, self._outbound.put))
        else:
            await self._outbound.put(event)

    async def _act(self, frame: ClientFrame, lanes: Lanes[Job]) -> None:
        match frame:
            case CreateFrame():
                await self._create(frame, lanes)
            case ResumeFrame():
                self._resume(frame, lanes)
            case CancelFrame():
                await self._cancel(frame, lanes)
            case UpdateFrame():
                await self._update(frame)
            case CloseFrame():
                await self._conversations.close(self._caller, frame.session)
                await self._outbound.put(session_closed_event(frame.session, frame.stream_id))
            case _:
                assert_never(frame)

    def _check_room(self, stream_id: str | None, lanes: Lanes[Job]) -> None:
        if not lanes.has_room(stream_id):
            limits = self._limits
            message = (
                f"frames waiting in one lane must be at most {limits.max_lane_frames}, "
                f"and lanes with waiting frames at most {limits.max_lanes}"
            )
            retry_after_s = self._drain_rate.retry_after_s()
            raise RequestError("queue_full", message, retry_after_s=retry_after_s)

    def _resume(self, frame: ResumeFrame, lanes: Lanes[Job]) -> None:
        self._check_room(frame.stream_id, lanes)

        def follow() -> Awaitable[LogReplay]:
            return self._followers.follow(
                self._caller, frame.response_id, attachment=self._attachment
            )

        lanes.put(frame.stream_id, ReplayJob(follow, frame, self._outbound.put))

    async def _create(self, frame: CreateFrame, lanes: Lanes[Job]) -> None:
        self._check_room(frame.stream_id, lanes)
        lane, key = frame.stream_id, frame.idempotency_key
        bound: Turn | str
        if key is None:
            bound = await self._turns.bind(
                self._caller, frame.request, attachment=self._attachment, lane=lane
            )
        else:
            bound = await self._turns.bind_once(
                self._caller, frame.request, key, attachment=self._attachment, lane=lane
            )
        if isinstance(bound, str):  # a repeated request
            again = ResumeFrame(stream_id=lane, response_id=bound, starting_after=None)
            self._resume(again, lanes)
        else:
            lanes.put(lane, TurnJob(self._turns, bound, lane, self._outbound.put))

    async def _update(self, frame: UpdateFrame) -> None:
        update = frame.update
        view = await self._settings.update(
            self._caller,
            frame.session,
            policy=update.policy,
            retention=update.retention,
            ttl_s=update.ttl_s,
            priority=update.priority,
        )
        await self._outbound.put(session_updated_event(view, frame.stream_id))

    async def _cancel(self, frame: CancelFrame, lanes: Lanes[Job]) -> None:
        response_id = frame.response_id
        if response_id is None and frame.stream_id is not None:
            waiting = (job.response_id for job in lanes.jobs(frame.stream_id))
            response_id = next((found for found in waiting if found is not None), None)
            if response_id is None:
                return
        await self._followers.cancel(
            self._caller, response_id, attachment=self._attachment, keep=frame.keep
        )

    async def _write(self) -> None:
        encode = msgspec.json.Encoder().encode
        while True:
            event = await self._outbound.get()
            try:
                async with asyncio.timeout(self._limits.send_timeout_s):
                    await self._websocket.send_text(encode(event).decode())
            except TimeoutError:
                self._end(TRY_AGAIN_LATER, "the client reads events too slowly")
                return
            except WebSocketDisconnect as gone:
                self._housekeeping.leave(self._attachment)
                self._end(None, f"the peer disconnected: {gone.code}")
                return
            self._outbound.task_done()

    async def _leave(self, leave: asyncio.Event, lanes: Lanes[Job]) -> None:
        await leave.wait()
        try:
            async with asyncio.timeout(self._limits.send_timeout_s):
                await lanes.idle()
                await self._outbound.join()
        except TimeoutError:
            logger.warning("a socket is closed with unsent events")
        self._end(GOING_AWAY_FOR_RESTART, "the server is restarting")

    async def _watch_key(self) -> None:
        await self._revoked.wait()
        self._end(NOT_ALLOWED, "the API key was revoked")

    async def _close(self, code: int, reason: str) -> None:
        try:
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError):
            logger.debug("the peer disconnected before close code %d was sent", code)


def _parse(text: str | None) -> dict[str, object]:
    if text is None:
        raise RequestError("invalid_json", "a frame must be JSON text (got a binary frame)")
    return parse_object(text)
