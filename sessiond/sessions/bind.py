"""Binds a turn to a session at receipt and queues it for the turn lock."""

import asyncio
from typing import Literal, Protocol

from engine.ids import SessionId
from sessiond.domain import AttachmentId, Caller, TurnRequest
from sessiond.errors import RequestError
from sessiond.sessions.lifecycle import State
from sessiond.sessions.live import LiveSession, SessionElsewhereError
from sessiond.sessions.names import session_id_of
from sessiond.sessions.parts import SessionDeps
from sessiond.sessions.refusals import busy, conversation_not_found, response_not_found
from sessiond.sessions.retention import Retention
from sessiond.sessions.turn_queue import LockTicket
from sessiond.store.records import SessionRecord, TurnRecord
from sessiond.store.volatile import volatile_prefix

CancelReason = Literal["cancelled", "disconnected"]
StopReason = Literal["cancelled", "disconnected", "deadline", "queue_timeout"]

OWN_PREFIX = "conv"
RESENT_PREFIX = "conv_chat"  # sessions of clients that resend their history


class Cancellable(Protocol):
    """A turn that the engine runs."""

    def cancel(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Stop the turn; a repeated call, or one after the end, has no effect."""
        ...


class BoundTurn:
    """A turn with its session. Ends in `SessionService.run` or `.drop`, which set `ended`.

    `stopped`: it was cancelled, possibly before the engine got it.
    """

    def __init__(  # noqa: PLR0913 -- a record, passed by keyword
        self,
        *,
        caller: Caller,
        request: TurnRequest,
        attachment: AttachmentId | None,
        live: LiveSession,
        ticket: LockTicket,
        response_id: str,
        message_id: str,
        received_at: float,
    ) -> None:
        self.caller = caller
        self.request = request
        self.attachment = attachment
        self.live = live
        self.ticket = ticket
        self.response_id = response_id
        self.message_id = message_id
        self.received_at = received_at
        self.begun = False
        self.key: str | None = None  # its idempotency key
        self.ended = asyncio.Event()
        self.stopped = asyncio.Event()
        self.is_followable = asyncio.Event()  # its events have started, or it has ended
        self._turn: Cancellable | None = None
        self._stop: tuple[bool, CancelReason] | None = None

    @property
    def session_id(self) -> str:
        """Id of the turn's session."""
        return self.live.id

    @property
    def owner(self) -> str | None:
        """The user who waits for the turn; None: it runs in the background."""
        return None if self.request.background else self.caller.user_id

    def stop(self, keep: bool, reason: CancelReason = "cancelled") -> None:
        """Cancel the turn, now or as soon as the engine has it. The first call wins."""
        if self._stop is None:
            self._stop = (keep, reason)
            self.stopped.set()
            if self._turn is not None:
                self._turn.cancel(keep, reason)

    def started(self, turn: Cancellable) -> None:
        """Record that the engine has the turn; a stop that came earlier is applied."""
        self._turn = turn
        self.is_followable.set()
        if self._stop is not None:
            turn.cancel(*self._stop)

    def end(self) -> None:
        """Mark the turn as ended."""
        self.is_followable.set()
        self.ended.set()
        self._turn = None  # breaks a reference cycle


class Binder:
    """Chooses the session of a turn: a new one, the named one, or a fork."""

    def __init__(self, deps: SessionDeps, *, retention: Retention) -> None:
        self._engine = deps.engine
        self._store = deps.store
        self._sessions = deps.sessions
        self._retention = retention
        self._ticks = deps.ticks
        self._new_id = deps.new_id

    async def bind(
        self,
        caller: Caller,
        request: TurnRequest,
        *,
        attachment: AttachmentId | None,
        lane: str | None,
        resends: bool = False,
    ) -> BoundTurn:
        """Take the turn lock of the turn's session, or queue for it.

        `resends`: the client resends its history and names no session. The turn gets a session made
        for such clients; no other session is changed.

        Raises:
            RequestError: the caller has no such session or turn, or the session is busy.
        """
        self._check_model(request.model)
        ticket = LockTicket(None if attachment is None else (attachment, lane))
        live = await self._claim(caller, request, ticket, resends=resends)
        self._retention.join(attachment, live)
        return BoundTurn(
            caller=caller,
            request=request,
            attachment=attachment,
            live=live,
            ticket=ticket,
            response_id=self._new_id(live.prefixed("resp")),
            message_id=self._new_id("msg"),
            received_at=self._ticks(),
        )

    async def load(
        self, caller: Caller, session_id: str, *, even_if_busy: bool = False
    ) -> LiveSession:
        """Load an open session of the caller; this replica owns it afterwards.

        Raises:
            RequestError: there is none, or another replica runs a turn in it (unless
                `even_if_busy`).
        """
        own_id = session_id_of(caller.user_id, session_id)
        live = await self._sessions.load(
            caller, own_id, self._check_session, even_if_busy=even_if_busy
        )
        if live is None:
            raise conversation_not_found(session_id)
        return live

    async def _claim(
        self, caller: Caller, request: TurnRequest, ticket: LockTicket, *, resends: bool
    ) -> LiveSession:
        prefix = RESENT_PREFIX if resends else OWN_PREFIX
        match request.conversation, request.previous_response_id:
            case None, None:
                live = self._new_session(caller, prefix, volatile=request.store is False)
                live.ticket(ticket)
            case str(session_id), None:
                live = await self.load(caller, session_id)
                check_store(request, live)
                if not live.ticket(ticket):
                    raise busy(session_id)
            case None, str(response_id):
                live = await self._at_response(caller, request, response_id, ticket, prefix)
            case _:
                raise RequestError(
                    "invalid_value",
                    "conversation and previous_response_id exclude each other",
                    param="previous_response_id",
                )
        return live

    async def _at_response(
        self,
        caller: Caller,
        request: TurnRequest,
        response_id: str,
        ticket: LockTicket,
        prefix: str,
    ) -> LiveSession:
        """Continue at the tip of an idle session; anywhere else, fork."""
        turn = await self._store.find_turn(caller.user_id, response_id)
        if turn is None or not turn.is_checkpoint:
            raise response_not_found(response_id)
        try:
            live = await self._sessions.load(caller, turn.session_id, self._check_session)
            if live is not None and live.stale:
                await self._sessions.refresh(live)
                live = await self._sessions.load(caller, turn.session_id, self._check_session)
        except SessionElsewhereError as elsewhere:  # it can be forked, but not continued here
            check_store(request, elsewhere.session)
            live = self.fork(elsewhere.session, turn, prefix)
            live.ticket(ticket)
            return live
        if live is None:  # the session was closed
            raise response_not_found(response_id)
        check_store(request, live)
        is_foreign = prefix == RESENT_PREFIX and not live.id.startswith(prefix)
        if live.tip_id != response_id or live.stale or live.turn_lock.is_locked or is_foreign:
            self._retention.join(None, live)
            live = self.fork(live, turn, prefix)
        live.ticket(ticket)
        return live

    def _new_session(self, caller: Caller, prefix: str, *, volatile: bool) -> LiveSession:
        live = LiveSession(
            id=SessionId(self._new_id(volatile_prefix(prefix) if volatile else prefix)),
            user_id=caller.user_id,
            salt=caller.salt,
            prompt=None,
            tip_id=None,
            tokens=0,
            awaits_reply=False,
            state=State.NEW,
            stored=False,
        )
        self._sessions.add(live)
        return live

    def fork(
        self, base: LiveSession, turn: TurnRecord | None, prefix: str = OWN_PREFIX
    ) -> LiveSession:
        """Create a session that starts with the context after a turn; it is not stored yet.

        None: with the system prefix alone, as `base` has no finished turn.
        """
        prompt = turn.prompt if turn else base.prompt
        live = LiveSession(
            id=SessionId(self._new_id(base.prefixed(prefix))),
            user_id=base.user_id,
            salt=base.salt,
            prompt=prompt,
            tip_id=turn.id if turn else None,
            tokens=turn.context_tokens or 0 if turn else base.tokens,
            awaits_reply=turn is not None and turn.awaits_reply,
            state=State.COLD if turn else State.NEW,
            stored=False,
            base_session_id=base.id,
            policy=base.policy,
            hints=base.hints,
            digest=turn.digest if turn else None,
        )
        self._sessions.add(live)
        return live

    def _check_model(self, model: str | None) -> None:
        served = self._engine.info.model
        if model is not None and model != served:
            raise RequestError(
                "model_not_found",
                f"model must be {served!r} (got {model!r})",
                param="model",
            )

    def _check_session(self, record: SessionRecord) -> None:
        info = self._engine.info
        if (record.model, record.vocab_size) != (info.model, info.vocab_size):
            raise RequestError(
                "model_not_found",
                f"the conversation's token ids are those of {record.model!r} "
                f"({record.vocab_size} tokens), which is not served now",
                param="model",
            )


def check_store(request: TurnRequest, live: LiveSession) -> None:
    """Check that `store` of a request agrees with its conversation.

    Raises:
        RequestError: it does not.
    """
    if request.store is not None and request.store == live.volatile:
        value = "true" if request.store else "false"
        kind = "lives in memory only" if live.volatile else "is stored"
        raise RequestError(
            "invalid_value",
            f"store must be absent, or the conversation new (got {value}; the conversation {kind})",
            param="store",
        )
