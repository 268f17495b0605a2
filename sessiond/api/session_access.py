"""Access to sessions by id: a user's own; for admins every user's, with an audit record."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sessiond.accounts import Accounts
from sessiond.domain import Caller
from sessiond.sessions.names import session_id_of

LOOK_EVERY_S = 3600.0
_MOST_READS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A session that `actor` may access as if it were `owner`, who is charged for all usage.

    `session_id`: the owner's id of it. For the actor's own session both users are the same.
    """

    actor: Caller
    owner: Caller
    session_id: str

    @property
    def is_others(self) -> bool:
        """Whether an admin accesses another user's session."""
        return self.owner.user_id != self.actor.user_id


class SessionReach:
    """Finds sessions and records admins' access. `accounts` None: there are no other users.

    `clock` returns Unix seconds. Volatile sessions are accessible to their owner alone, since
    access to them is not recorded.
    """

    def __init__(self, accounts: Accounts | None, *, clock: Callable[[], float]) -> None:
        self._accounts = accounts
        self._clock = clock
        self._read_at: OrderedDict[tuple[str, str], float] = OrderedDict()  # by actor and session

    async def find(self, caller: Caller, session_id: str) -> Reached:
        """Find a session's owner; an unknown id is treated as the caller's and fails later.

        Raises:
            StoreError: the database failed.
        """
        own = Reached(actor=caller, owner=caller, session_id=session_id)
        if not caller.is_admin or self._accounts is None:
            return own
        stored_id = session_id_of(caller.user_id, session_id)
        owner = await self._accounts.session_owner(stored_id)
        if owner is None or owner.user_id == caller.user_id:
            return own
        return Reached(
            actor=caller,
            owner=Caller(user_id=owner.user_id, is_admin=False, salt=owner.salt),
            session_id=stored_id,
        )

    async def write_down(self, reached: Reached, action: str, **detail: Any) -> None:
        """Record an admin's action on another user's session; own sessions are not recorded.

        Raises:
            StoreError: the database failed.
        """
        if self._accounts is not None and reached.is_others:
            await self._accounts.write_down(
                reached.actor.user_id,
                action,
                reached.owner.user_id,
                session=reached.session_id,
                **detail,
            )

    async def write_down_look(self, reached: Reached) -> None:
        """Record a read access, once an hour per admin and session, since pages poll.

        Raises:
            StoreError: the database failed.
        """
        if not reached.is_others:
            return
        key, now = (reached.actor.user_id, reached.session_id), self._clock()
        if now - self._read_at.get(key, -LOOK_EVERY_S) < LOOK_EVERY_S:
            return
        await self.write_down(reached, "user.session.read")
        self._read_at[key] = now
        self._read_at.move_to_end(key)
        while len(self._read_at) > _MOST_READS:
            self._read_at.popitem(last=False)
