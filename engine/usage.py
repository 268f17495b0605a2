"""Usage by session beside its context: owner, turns, hints. Loop thread only.

Setting a context anew changes none of it; only closing the session ends it.
"""

from dataclasses import dataclass

from engine.ids import SessionId
from engine.messages import Terms


@dataclass(slots=True)
class Usage:
    """Usage of one session. `owner` is its salt: the same for all sessions of a user.

    `turns` were submitted since the engine knows the session, the last with `new_tokens`.
    """

    owner: bytes
    turns: int = 0
    new_tokens: int = 0
    priority: int = 1
    ttl_s: float | None = None
    hinted_s: float = 0.0

    def expected_until_s(self, last_used_s: float) -> float | None:
        """Time until which a return is expected: the last use or hint, plus the time to live."""
        return None if self.ttl_s is None else max(self.hinted_s, last_used_s) + self.ttl_s


class UsageBook:
    """Usage by session; sessions and limits by owner.

    `max_user_blocks`: limit for the sessions of every owner together; 0 sets no limit.
    """

    def __init__(self, max_user_blocks: int = 0) -> None:
        self._max_user_blocks = max_user_blocks
        self._max_blocks: dict[bytes, int] = {}
        self._of: dict[SessionId, Usage] = {}
        self._owned: dict[bytes, set[SessionId]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, session: SessionId) -> Usage:
        """Usage of an open session."""
        return self._of[session]

    def sessions_of(self, owner: bytes) -> set[SessionId]:
        """All sessions of a user."""
        return self._owned.get(owner, set())

    def agree(self, session: SessionId, terms: Terms) -> None:
        """Set the terms of a session's owner."""
        owner = self._of[session].owner
        if terms.max_blocks is None:
            self._max_blocks.pop(owner, None)
        else:
            self._max_blocks[owner] = terms.max_blocks

    @property
    def has_limits(self) -> bool:
        """Whether any owner has a limit."""
        return self._max_user_blocks > 0 or bool(self._max_blocks)

    def max_blocks(self, owner: bytes) -> int | None:
        """Limit for the owner's sessions together; None: no limit."""
        own = self._max_blocks.get(owner)
        if not self._max_user_blocks:
            return own
        return self._max_user_blocks if own is None else min(own, self._max_user_blocks)

    def open(self, session: SessionId, owner: bytes) -> None:
        """A session has a context. Its usage is kept unless its user has changed."""
        known = self._of.get(session)
        if known is None or known.owner != owner:
            self.forget(session)
            self._of[session] = Usage(owner)
            self._owned.setdefault(owner, set()).add(session)

    def fork(self, parent: SessionId, session: SessionId) -> None:
        """A session continues another's turns. Hints are not inherited."""
        seen = self._of[parent]
        self.open(session, seen.owner)
        self._of[session].turns = seen.turns
        self._of[session].new_tokens = seen.new_tokens

    def note_turn(self, session: SessionId, new_tokens: int) -> None:
        """A turn was submitted."""
        usage = self._of[session]
        usage.turns += 1
        usage.new_tokens = new_tokens

    def hint(self, session: SessionId, *, ttl_s: float | None, priority: int, now_s: float) -> None:
        """Replace a session's hints. Ignored for unknown sessions."""
        usage = self._of.get(session)
        if usage is not None:
            usage.ttl_s, usage.priority, usage.hinted_s = ttl_s, priority, now_s

    def forget(self, session: SessionId) -> None:
        """The session has closed."""
        usage = self._of.pop(session, None)
        if usage is None:
            return
        owned = self._owned[usage.owner]
        owned.discard(session)
        if not owned:
            del self._owned[usage.owner]
            self._max_blocks.pop(usage.owner, None)
