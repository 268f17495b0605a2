"""Cancels turns on a client's request or when a key is revoked. Asyncio thread only."""

from sessiond.errors import RequestError
from sessiond.facts import AttachmentId, Caller
from sessiond.sessions.parts import Parts
from sessiond.sessions.refusals import response_not_found
from sessiond.sessions.runner import TurnRunner


class Cancelling:
    """Owns nothing: the runner owns the turns."""

    def __init__(self, parts: Parts, *, runner: TurnRunner) -> None:
        self._store = parts.store
        self._cancel_timeout_s = parts.limits.cancel_timeout_s
        self._runner = runner

    async def cancel(
        self,
        caller: Caller,
        response_id: str | None,
        *,
        attachment: AttachmentId | None,
        keep: bool,
    ) -> None:
        """Cancel a turn; for an ended one this has no effect.

        None: the running turns of the attachment or, if it has none, its waiting ones.

        Raises:
            RequestError: there is no such response.
        """
        if response_id is None:
            if attachment is not None:
                self._runner.stop_of(attachment, keep=keep)
            return
        found = self._runner.find(response_id)
        if found is not None and found.caller.user_id == caller.user_id:
            found.stop(keep)
            if attachment is None:  # an HTTP response contains the final state
                await self._runner.ended([found], self._cancel_timeout_s)
        elif await self._store.find_turn(caller.user_id, response_id) is None:
            raise response_not_found(response_id)

    def keys_at_work(self) -> frozenset[str]:
        """Keys with running or waiting turns."""
        ids = (bound.caller.key_id for bound in self._runner.bound_turns())
        return frozenset(key_id for key_id in ids if key_id is not None)

    def end_work_of_key(self, key_id: str) -> None:
        """Cancel the turns of a revoked key, as if their clients had disconnected."""
        for bound in self._runner.bound_turns():
            if bound.caller.key_id == key_id:
                refusal = RequestError("invalid_api_key", "the API key was revoked")
                self._runner.drop(bound, refusal)
                bound.stop(keep=False, reason="disconnected")
