"""Turns from receipt to their start; under an idempotency key only once. Asyncio thread only."""

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
        """Decide at receipt where the turn belongs, and hold that place; see `Binder.bind`."""
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
        """The same, or the id of the response that the same request has got before.

        A response that failed is none: the request is tried again.

        Raises:
            RequestError: the key came with another request, or this one can't be repeated.
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
            self._runner.drop(bound)  # another was quicker

    async def run(self, bound: BoundTurn) -> Turn:
        """Wait for the place in the lane, store the turn (commit 1), hand it to the engine.

        Who named a response is told that it is gone, not a conversation that it has never named.
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
        """Give up a place that was not run."""
        self._runner.drop(bound)
        await self._release(bound)

    async def _release(self, bound: BoundTurn) -> None:
        if bound.key is not None:
            await self._repeats.release(bound.caller, bound.key, bound.response_id)

    async def has_response(self, caller: Caller, response_id: str) -> bool:
        """Whether a response is being written, or was and has not failed."""
        bound = self._runner.find(response_id)
        if bound is not None and bound.caller.user_id == caller.user_id:
            return True
        turn = await self._store.find_turn(caller.user_id, response_id)
        return turn is not None and turn.deleted_at is None and turn.status != "failed"


def _check_is_stored(bound: BoundTurn) -> None:
    if bound.live.volatile:
        raise RequestError(
            "invalid_value",
            "idempotency_key and store=false: allowed is one: "
            "what is not stored can't be found again",
            param="idempotency_key",
        )
