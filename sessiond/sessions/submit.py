"""Turns from receipt to their start. Asyncio thread only.

A turn with an idempotency key starts once. A client that resends its whole history is matched to
the longest stored prefix.
"""

from dataclasses import replace
from functools import partial

from sessiond.domain import AttachmentId, Caller, TurnRequest
from sessiond.errors import RequestError
from sessiond.sessions.bind import Binder, BoundTurn
from sessiond.sessions.idempotency import IdempotentRequests, turn_digest
from sessiond.sessions.parts import SessionDeps
from sessiond.sessions.refusals import response_not_found
from sessiond.sessions.run import TurnRunner
from sessiond.sessions.transcript import of_prefixes
from sessiond.sessions.turn import Turn


class TurnSubmitter:
    """Binds turns; every bound turn ends in `run` or `drop`."""

    def __init__(
        self,
        deps: SessionDeps,
        *,
        binder: Binder,
        runner: TurnRunner,
        idempotency: IdempotentRequests,
    ) -> None:
        self._store = deps.store
        self._binder = binder
        self._runner = runner
        self._idempotency = idempotency

    async def bind(
        self,
        caller: Caller,
        request: TurnRequest,
        *,
        attachment: AttachmentId | None,
        lane: str | None,
        resends: bool = False,
    ) -> BoundTurn:
        """Bind the turn to a session at receipt and queue for its turn lock; see `Binder.bind`."""
        self._runner.check_room(None if request.background else caller.user_id)
        bound = await self._binder.bind(
            caller, request, attachment=attachment, lane=lane, resends=resends
        )
        self._runner.add(bound)
        return bound

    async def bind_once(
        self,
        caller: Caller,
        request: TurnRequest,
        key: str,
        *,
        attachment: AttachmentId | None,
        lane: str | None,
    ) -> BoundTurn | str:
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
            bound = await self.bind(caller, request, attachment=attachment, lane=lane)
            try:
                _check_is_stored(bound)
                if await self._idempotency.claim(caller, key, digest, bound.response_id):
                    bound.key = key
                    return bound
            except BaseException:
                self._runner.drop(bound)
                raise
            self._runner.drop(bound)  # a concurrent request took the key

    async def run(self, bound: BoundTurn) -> Turn:
        """Wait for the turn lock, store the turn (commit 1), submit it to the engine.

        An error names what the request named: its response, not the conversation.
        """
        try:
            return await self._runner.run(bound)
        except RequestError as error:
            await self._release(bound)
            named = bound.request.previous_response_id
            if named is not None and error.code == "conversation_not_found":
                raise response_not_found(named) from error
            raise

    async def drop(self, bound: BoundTurn) -> None:
        """Drop a bound turn that has not run, and release its idempotency key."""
        self._runner.drop(bound)
        await self._release(bound)

    async def _release(self, bound: BoundTurn) -> None:
        if bound.key is not None:
            await self._idempotency.release(bound.caller, bound.key, bound.response_id)

    async def has_response(self, caller: Caller, response_id: str) -> bool:
        """Whether a response is running or stored and has not failed."""
        bound = self._runner.find(response_id)
        if bound is not None and bound.caller.user_id == caller.user_id:
            return True
        turn = await self._store.find_turn(caller.user_id, response_id)
        return turn is not None and turn.deleted_at is None and turn.status != "failed"


def _check_is_stored(bound: BoundTurn) -> None:
    if bound.live.volatile:
        raise RequestError(
            "invalid_value",
            "idempotency_key must be absent when store is false: "
            "a response that is not stored can't be repeated",
            param="idempotency_key",
        )


class Chats:
    """Continues the longest stored prefix of a history. Stateless between requests."""

    def __init__(self, deps: SessionDeps, *, submitter: TurnSubmitter) -> None:
        self._engine = deps.engine
        self._store = deps.store
        self._submitter = submitter

    async def bind(self, caller: Caller, request: TurnRequest) -> BoundTurn:
        """Bind a turn whose input is a whole history; its stored prefix is not computed again.

        Only sessions made for such clients are changed.
        """
        messages = request.input
        digests = [] if request.store is False else of_prefixes(messages)[:-1]
        model = self._engine.info.model
        found = await self._store.turn_by_digest(caller.user_id, model, digests)
        if found is not None:
            turn_id, place = found
            rest = messages[place + 1 :]
            request = replace(request, previous_response_id=turn_id, input=rest)
        return await self._submitter.bind(caller, request, attachment=None, lane=None, resends=True)
