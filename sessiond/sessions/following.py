"""Streams a turn to later or reconnected readers. Asyncio thread only."""

from sessiond.errors import RequestError
from sessiond.facts import AttachmentId, Caller
from sessiond.sessions.inspection import Inspector
from sessiond.sessions.parts import Parts
from sessiond.sessions.refusals import response_not_found
from sessiond.sessions.replays import Replay, stored_replay
from sessiond.sessions.retention import Retention
from sessiond.sessions.runner import TurnRunner


class Followers:
    """Finds a turn's events: while it runs, for a while afterwards, then from its row."""

    def __init__(
        self, parts: Parts, *, runner: TurnRunner, retention: Retention, inspector: Inspector
    ) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._sessions = parts.sessions
        self._runner = runner
        self._retention = retention
        self._inspector = inspector

    async def follow(
        self, caller: Caller, response_id: str, *, attachment: AttachmentId | None
    ) -> Replay:
        """Replay the turn from its start; a following socket also holds the turn's session.

        Raises:
            RequestError: there is no such turn, or another server runs it.
        """
        bound = self._runner.find(response_id)
        if bound is not None and bound.caller.user_id == caller.user_id:
            await bound.is_told.wait()
        replay = self._runner.replays.find(caller.user_id, response_id)
        if replay is None:
            view = await self._inspector.response(caller, response_id)
            if view.finished is None:
                raise RequestError(
                    "turn_in_progress",
                    f"response {response_id} is running on another server",
                    param="response_id",
                )
            replay = stored_replay(view.accepted, view.finished)
        elif self._sessions.is_dead(replay.accepted.session_id):
            raise response_not_found(response_id, param="response_id")
        live = self._sessions.find(caller.user_id, replay.accepted.session_id)
        if attachment is not None and live is not None:
            self._retention.join(attachment, live)
        return replay

    async def forget(self, caller: Caller, response_id: str) -> None:
        """Delete a turn's id and its events.

        Raises:
            RequestError: there is no such turn, or it runs.
        """
        if not await self._store.delete_turn(caller.user_id, response_id, self._clock()):
            raise response_not_found(response_id)
        self._runner.replays.forget(response_id)
