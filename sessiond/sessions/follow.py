"""Turns followed or cancelled by requests that did not start them. Asyncio thread only."""

from collections.abc import Callable

from sessiond.domain import AttachmentId, Caller
from sessiond.errors import RequestError
from sessiond.sessions.inspection import Inspector
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.refusals import response_not_found
from sessiond.sessions.retention import Retention
from sessiond.sessions.run import TurnRunner
from sessiond.sessions.turn import LogReplay, stored_replay
from sessiond.store.store import Store


class Followers:
    """Finds the events of a turn: in its log, or in its row once the log has expired.

    Cancels turns by response, attachment or API key; the runner owns them.
    """

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        store: Store,
        sessions: LiveSessions,
        clock: Callable[[], float],
        cancel_timeout_s: float,
        runner: TurnRunner,
        retention: Retention,
        inspector: Inspector,
    ) -> None:
        self._store = store
        self._clock = clock
        self._cancel_timeout_s = cancel_timeout_s
        self._sessions = sessions
        self._runner, self._replays = runner, runner.replays
        self._retention = retention
        self._inspector = inspector

    async def follow(
        self, caller: Caller, response_id: str, *, attachment: AttachmentId | None = None
    ) -> LogReplay:
        """Replay the turn from its start; a following socket also holds the turn's session.

        Raises:
            RequestError: there is no such turn, or another server runs it.
        """
        turn = self._runner.find(response_id)
        if turn is not None and turn.caller.user_id == caller.user_id:
            await turn.is_followable.wait()
        replay = self._replays.find(caller.user_id, response_id)
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
        self._replays.forget(response_id)

    async def cancel(
        self,
        caller: Caller,
        response_id: str | None,
        *,
        attachment: AttachmentId | None,
        keep: bool,
    ) -> None:
        """Cancel a turn; an ended one is unchanged.

        `response_id` None: the running turns of the attachment or, without any, its waiting ones.

        Raises:
            RequestError: there is no such response.
        """
        if response_id is None:
            if attachment is not None:
                self._runner.stop_of(attachment, keep=keep)
            return
        found = self._runner.find(response_id)
        if found is not None and found.caller.user_id == caller.user_id:
            found.cancel(keep)
            if attachment is None:  # an HTTP response contains the final state
                await self._runner.ended([found], self._cancel_timeout_s)
        elif await self._store.find_turn(caller.user_id, response_id) is None:
            raise response_not_found(response_id)

    def keys_at_work(self) -> frozenset[str]:
        """Ids of API keys with running or waiting turns."""
        ids = (turn.caller.key_id for turn in self._runner.bound_turns())
        return frozenset(key_id for key_id in ids if key_id is not None)

    def end_work_of_key(self, key_id: str) -> None:
        """Cancel the turns of a revoked key, as if their clients had disconnected."""
        for turn in self._runner.bound_turns():
            if turn.caller.key_id == key_id:
                refusal = RequestError("invalid_api_key", "the API key was revoked")
                self._runner.drop(turn, refusal)
                turn.cancel(keep=False, reason="disconnected")
