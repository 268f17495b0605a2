"""Turns of clients that resend their whole history: finds its stored prefix."""

from dataclasses import replace

from sessiond.facts import Caller, TurnRequest
from sessiond.sessions.beginnings import Beginnings
from sessiond.sessions.bound import BoundTurn
from sessiond.sessions.message_digest import of_prefixes
from sessiond.sessions.parts import Parts


class Chats:
    """Looks up the longest stored prefix of a history. Stateless between requests."""

    def __init__(self, parts: Parts, *, beginnings: Beginnings) -> None:
        self._engine = parts.engine
        self._store = parts.store
        self._beginnings = beginnings

    async def bind(self, caller: Caller, request: TurnRequest) -> BoundTurn:
        """Bind a turn whose input is a whole history, after the stored prefix.

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
        return await self._beginnings.bind(
            caller, request, attachment=None, lane=None, resends=True
        )
