"""Binds a turn to a session at receipt and queues it for the turn lock. Asyncio thread only.

A turn with an idempotency key starts once. A client that resends its whole history is matched to
the longest stored prefix.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from engine.ipc.client import EngineClient
from sessiond.domain import AttachmentId, Caller, TurnRequest
from sessiond.errors import RequestError
from sessiond.sessions.idempotency import IdempotentRequests, turn_digest
from sessiond.sessions.live import OWN_PREFIX, LiveSessions, SessionElsewhereError
from sessiond.sessions.live_session import LiveSession, LockTicket
from sessiond.sessions.refusals import busy, response_not_found
from sessiond.sessions.retention import Retention
from sessiond.sessions.run import TurnRunner
from sessiond.sessions.transcript import of_prefixes
from sessiond.sessions.turn import Turn
from sessiond.store.store import Store

RESENT_PREFIX = "conv_chat"  # sessions of clients that resend their history


class TurnBinder:
    """Chooses the session of a turn: a new one, the named one, or a fork.

    Every bound turn ends in `run` or `drop`.
    """

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        engine: EngineClient,
        store: Store,
        sessions: LiveSessions,
        retention: Retention,
        runner: TurnRunner,
        idempotency: IdempotentRequests,
        ticks: Callable[[], float],
        new_id: Callable[[str], str],
    ) -> None:
        self._engine = engine
        self._store = store
        self._sessions = sessions
        self._retention = retention
        self._runner = runner
        self._idempotency = idempotency
        self._ticks = ticks
        self._new_id = new_id

    async def bind(
        self,
        caller: Caller,
        request: TurnRequest,
        *,
        attachment: AttachmentId | None,
        lane: str | None,
        resends: bool = False,
    ) -> Turn:
        """Take the turn lock of the turn's session, or queue for it.

        `resends`: the client resends its history and names no session. The turn gets a session made
        for such clients; no other session is changed.

        Raises:
            RequestError: the caller has no such session or turn, the session is busy, or the
                maximum number of turns runs or waits.
        """
        self._check(caller, request)
        ticket = LockTicket(None if attachment is None else (attachment, lane))
        live = await self._lock(caller, request, ticket, resends=resends)
        self._retention.join(attachment, live)
        turn = Turn(
            caller=caller,
            request=request,
            attachment=attachment,
            live=live,
            ticket=ticket,
            response_id=self._new_id(live.prefixed("resp")),
            message_id=self._new_id("msg"),
            received_at=self._ticks(),
            engine=self._engine,
        )
        self._runner.add(turn)
        return turn

    async def bind_once(
        self,
        caller: Caller,
        request: TurnRequest,
        key: str,
        *,
        attachment: AttachmentId | None,
        lane: str | None,
    ) -> Turn | str:
        """Bind the turn, or return the response id of an earlier request with the same key.

        A failed response does not count: the request is run again.

        Raises:
            RequestError: the key was used for another request, or the turn is not stored.
        """
        digest = turn_digest(request)
        while True:
            known = await self._idempotency.find(
                caller, key, digest, partial(self.has_response, caller)
            )
            if known is not None:
                return known
            turn = await self.bind(caller, request, attachment=attachment, lane=lane)
            try:
                _check_is_stored(turn)
                if await self._idempotency.claim(caller, key, digest, turn.response_id):
                    turn.key = key
                    return turn
            except BaseException:
                self._runner.drop(turn)
                raise
            self._runner.drop(turn)  # a concurrent request took the key

    async def bind_chat(self, caller: Caller, request: TurnRequest) -> Turn:
        """Bind a turn whose input is a whole history; its stored prefix is not computed again.

        Only sessions made for such clients are changed.

        Raises:
            RequestError: as for `bind`.
        """
        self._check(caller, request)
        messages = request.input
        digests = [] if request.store is False else of_prefixes(messages)[:-1]
        model = self._engine.info.model
        found = await self._store.turn_by_digest(caller.user_id, model, digests)
        if found is not None:
            turn_id, place = found
            rest = messages[place + 1 :]
            request = replace(request, previous_response_id=turn_id, input=rest)
        return await self.bind(caller, request, attachment=None, lane=None, resends=True)

    async def run(self, turn: Turn) -> Turn:
        """Wait for the turn lock, store the turn (commit 1), submit it to the engine.

        An error names what the request named: its response, not the conversation.
        """
        try:
            return await self._runner.run(turn)
        except RequestError as error:
            await self._release(turn)
            named = turn.request.previous_response_id
            if named is not None and error.code == "conversation_not_found":
                raise response_not_found(named) from error
            raise

    async def drop(self, turn: Turn) -> None:
        """Drop a bound turn that has not run, and release its idempotency key."""
        self._runner.drop(turn)
        await self._release(turn)

    async def _release(self, turn: Turn) -> None:
        if turn.key is not None:
            await self._idempotency.release(turn.caller, turn.key, turn.response_id)

    async def has_response(self, caller: Caller, response_id: str) -> bool:
        """Whether a response is running or stored and has not failed."""
        running = self._runner.find(response_id)
        if running is not None and running.caller.user_id == caller.user_id:
            return True
        turn = await self._store.find_turn(caller.user_id, response_id)
        return turn is not None and turn.deleted_at is None and turn.status != "failed"

    async def _lock(
        self, caller: Caller, request: TurnRequest, ticket: LockTicket, *, resends: bool
    ) -> LiveSession:
        prefix = RESENT_PREFIX if resends else OWN_PREFIX
        match request.conversation, request.previous_response_id:
            case None, None:
                live = self._sessions.add_new(caller, prefix, volatile=request.store is False)
                live.ticket(ticket)
            case str(session_id), None:
                live = await self._sessions.open(caller, session_id)
                _check_store(request, live)
                if not live.ticket(ticket):
                    raise busy(session_id)
            case None, str(response_id):
                live = await self._at_response(caller, request, response_id, ticket, prefix)
            case _:
                raise RequestError(
                    "invalid_value",
                    "previous_response_id must be absent with conversation",
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
            live = await self._sessions.load(caller, turn.session_id)
            if live is not None and live.stale:
                await self._sessions.refresh(live)
                live = await self._sessions.load(caller, turn.session_id)
        except SessionElsewhereError as elsewhere:  # it can be forked, but not continued here
            _check_store(request, elsewhere.session)
            live = self._sessions.add_fork(elsewhere.session, turn, prefix)
            live.ticket(ticket)
            return live
        if live is None:  # the session was closed
            raise response_not_found(response_id)
        _check_store(request, live)
        is_foreign = prefix == RESENT_PREFIX and not live.id.startswith(prefix)
        if live.tip_id != response_id or live.stale or live.turn_lock.is_locked or is_foreign:
            self._retention.join(None, live)
            live = self._sessions.add_fork(live, turn, prefix)
        live.ticket(ticket)
        return live

    def _check(self, caller: Caller, request: TurnRequest) -> None:
        """Refuse, before any work, a turn that can't be bound."""
        self._runner.check_room(None if request.background else caller.user_id)
        self._check_model(request.model)

    def _check_model(self, model: str | None) -> None:
        served = self._engine.info.model
        if model is not None and model != served:
            raise RequestError(
                "model_not_found",
                f"model must be {served!r} (got {model!r})",
                param="model",
            )


def _check_is_stored(turn: Turn) -> None:
    if turn.live.volatile:
        raise RequestError(
            "invalid_value",
            "idempotency_key must be absent when store is false: "
            "a response that is not stored cannot be repeated",
            param="idempotency_key",
        )


def _check_store(request: TurnRequest, live: LiveSession) -> None:
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
