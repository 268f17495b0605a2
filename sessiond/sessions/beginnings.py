"""Submits turns: bind, then run; at most once per idempotency key. Asyncio thread only."""

from functools import partial

from sessiond.errors import RequestError
from sessiond.facts import AttachmentId, Caller, TurnRequest
from sessiond.sessions.binding import Binder
from sessiond.sessions.bound import BoundTurn
from sessiond.sessions.parts import Parts
from sessiond.sessions.refusals import response_not_found
from sessiond.sessions.repeats import Repeats, turn_digest
from sessiond.sessions.runner import TurnRunner
from sessiond.sessions.turn import Turn


class Beginnings:
    """Every bound turn ends in `run` or `drop`."""

    def __init__(
        self, parts: Parts, *, binder: Binder, runner: TurnRunner, repeats: Repeats
    ) -> None:
        self._store = parts.store
        self._binder = binder
        self._runner = runner
        self._repeats = repeats

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
            known = await self._repeats.find(
                caller, key, digest, partial(self.has_response, caller)
            )
            if known is not None:
                return known
            bound = await self.bind(caller, request, attachment=attachment, lane=lane)
            try:
                _check_is_stored(bound)
                if await self._repeats.claim(caller, key, digest, bound.response_id):
                    bound.key = key
                    return bound
            except BaseException:
                self._runner.drop(bound)
                raise
            self._runner.drop(bound)  # a concurrent request took the key

    async def run(self, bound: BoundTurn) -> Turn:
        """Wait for the turn lock, store the turn (commit 1), submit it to the engine.

        An error names the response that the request named, not its conversation.
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
        """Release the place of a turn that did not run."""
        self._runner.drop(bound)
        await self._release(bound)

    async def _release(self, bound: BoundTurn) -> None:
        if bound.key is not None:
            await self._repeats.release(bound.caller, bound.key, bound.response_id)

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
