"""Lists sessions by owner and state, page by page. Reads only."""

from collections.abc import Mapping

from sessiond.errors import RequestError
from sessiond.facts import EVERYBODY, Caller, SessionFilter, SessionPage, SessionState, SessionView
from sessiond.sessions.inspection import Inspector
from sessiond.sessions.parts import Parts
from sessiond.store.records import SessionChoice, Standing

_BY_ROW: Mapping[SessionState, Standing] = {"new": "new", "cold": "begun", "closed": "closed"}


class Listing:
    """Stored fields are filtered in SQL, states known in memory only are filtered in memory first.

    A page costs its own size plus at most the sessions in memory, never all stored ones.
    """

    def __init__(self, parts: Parts, *, inspector: Inspector) -> None:
        self._inspector = inspector
        self._store = parts.store
        self._sessions = parts.sessions

    async def page(
        self, caller: Caller, limit: int, after: str | None, wanted: SessionFilter
    ) -> SessionPage:
        """Sessions without their turns, latest activity first.

        Raises:
            RequestError: the caller is no admin and lists another user's.
        """
        which = self._choice(_whose(caller, wanted), wanted.state)
        views: list[SessionView] = []
        has_more = True
        while has_more and len(views) <= limit:
            details, has_more = await self._store.list_sessions(which, limit=limit, after=after)
            found = await self._inspector.views(details)
            views += [view for view in found if wanted.state in {None, view.state}]
            after = details[-1].session.id if details else None
            if wanted.state is None:
                break
        return SessionPage(sessions=tuple(views[:limit]), has_more=has_more or len(views) > limit)

    def _choice(self, user_id: str | None, state: SessionState | None) -> SessionChoice:
        if state is None:
            return SessionChoice(user_id=user_id)
        if state in _BY_ROW:
            return SessionChoice(user_id=user_id, standing=_BY_ROW[state])
        in_memory = tuple(
            live.id
            for live in self._sessions
            if live.stored
            and not live.volatile
            and live.state.value == state
            and user_id in {None, live.user_id}
        )
        return SessionChoice(user_id=user_id, ids=in_memory)


def _whose(caller: Caller, wanted: SessionFilter) -> str | None:
    """The user's id; None: all users."""
    user_id = caller.user_id if wanted.user_id is None else wanted.user_id
    if user_id != caller.user_id and not caller.is_admin:
        raise RequestError(
            "permission_denied", "only an admin may list the sessions of other users", param="user"
        )
    return None if user_id == EVERYBODY else user_id
