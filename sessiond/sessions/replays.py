"""Event logs of running and recently ended turns, for reconnecting readers."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from sessiond.facts import TurnAccepted, TurnBegun, TurnFact, TurnFinished
from sessiond.sessions.fact_log import FactLog, SkippedFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One turn's past and future. `is_stored`: told by its row, not as its first reader heard it.

    `skipped`: what of it is no longer kept, at its beginning.
    """

    accepted: TurnAccepted
    log: FactLog
    is_stored: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)  # what was left then is of no use

    @property
    def skipped(self) -> SkippedFacts:
        """What comes before the facts."""
        return self.log.skipped

    def facts(self) -> AsyncIterator[TurnFact]:
        """What is kept, then what still comes; leaving early changes nothing."""
        return self.log.read()


def stored_replay(accepted: TurnAccepted, finished: TurnFinished) -> Replay:
    """A replay built from the turn's row."""
    log = FactLog()
    log.put(TurnBegun())
    log.put(finished)
    return Replay(accepted=accepted, log=log, is_stored=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    replay: Replay
    user_id: str
    until_s: float


class Replays:
    """Logs of ended turns are kept for `ttl_s`, up to `max_bytes` together."""

    def __init__(self, *, ttl_s: float, max_bytes: int) -> None:
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._running: dict[str, tuple[str, Replay]] = {}
        self._ended: OrderedDict[str, _Kept] = OrderedDict()  # the longest ended first
        self._of_session: dict[str, set[str]] = {}  # those that ended
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    @property
    def size_bytes(self) -> int:
        """Approximate size of the logs of ended turns."""
        return self._bytes

    def begin(self, user_id: str, replay: Replay) -> None:
        """Register a turn before its first event."""
        self._running[replay.accepted.response_id] = (user_id, replay)

    def end(self, response_id: str, now_s: float) -> None:
        """Mark a log as complete."""
        user_id, replay = self._running.pop(response_id)
        kept = _Kept(replay=replay, user_id=user_id, until_s=now_s + self._ttl_s)
        self._ended[response_id] = kept
        self._of_session.setdefault(replay.accepted.session_id, set()).add(response_id)
        self._bytes += replay.log.size_bytes
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._ended)))

    def find(self, user_id: str, response_id: str) -> Replay | None:
        """What is kept of a user's turn."""
        if response_id in self._running:
            owner, replay = self._running[response_id]
        elif response_id in self._ended:
            kept = self._ended[response_id]
            owner, replay = kept.user_id, kept.replay
        else:
            return None
        return replay if owner == user_id else None

    def forget(self, response_id: str) -> None:
        """A response was deleted."""
        if response_id in self._ended:
            self._drop(response_id)

    def forget_session(self, session_id: str) -> None:
        """A session was deleted, and with it all that was said in it."""
        for response_id in tuple(self._of_session.get(session_id, ())):
            self._drop(response_id)

    def reap(self, now_s: float) -> None:
        """Drop expired logs."""
        while self._ended and next(iter(self._ended.values())).until_s <= now_s:
            self._drop(next(iter(self._ended)))

    def _drop(self, response_id: str) -> None:
        replay = self._ended.pop(response_id).replay
        self._bytes -= replay.log.size_bytes
        session_id = replay.accepted.session_id
        of_session = self._of_session[session_id]
        of_session.discard(response_id)
        if not of_session:
            del self._of_session[session_id]
