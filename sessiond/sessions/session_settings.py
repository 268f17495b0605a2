"""Session settings outside of turns: policy, retention, hints, park."""

from dataclasses import replace

from sessiond.domain import UNSET, Caller, PolicyChoice, SessionView, Unset
from sessiond.sessions.context_policies import ContextPolicies
from sessiond.sessions.inspection import Inspector
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import is_free
from sessiond.sessions.quotas import Quotas
from sessiond.sessions.refusals import busy, conversation_not_found
from sessiond.sessions.request_form import pack_policy
from sessiond.sessions.retention import Retention
from sessiond.store.records import Priority
from sessiond.store.records import Retention as RetentionName
from sessiond.store.store import Store


class SessionSettings:
    """Takes no turn lock: a change during a turn applies from the next one on."""

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        store: Store,
        sessions: LiveSessions,
        inspector: Inspector,
        retention: Retention,
        policies: ContextPolicies,
        quotas: Quotas,
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._inspector = inspector
        self._retention = retention
        self._policies = policies
        self._quotas = quotas

    async def set_policy(
        self, caller: Caller, session_id: str, choice: PolicyChoice | None
    ) -> SessionView:
        """Replace the session's context policy; None: that of the user, or the server.

        Raises:
            RequestError: there is no such session, or the policy can't be used here.
        """
        await self._set_policy(caller, session_id, choice)
        return await self._inspector.session(caller, session_id)

    async def _set_policy(
        self, caller: Caller, session_id: str, choice: PolicyChoice | None
    ) -> None:
        if choice is not None:
            self._policies.check(choice)
        live = await self._sessions.open(caller, session_id)
        if not await self._store.set_policy(caller.user_id, live.id, pack_policy(choice)):
            raise conversation_not_found(session_id)
        live.policy = choice

    async def update(  # noqa: PLR0913 -- the fields of a session, passed by keyword
        self,
        caller: Caller,
        session_id: str,
        *,
        policy: PolicyChoice | Unset | None = UNSET,
        retention: RetentionName | None = None,
        ttl_s: float | None = None,
        priority: Priority | None = None,
    ) -> SessionView:
        """Change the given fields and send the hints among them to the engine.

        `policy` None: remove the session's own. The priority is capped by the user's quota.

        Raises:
            RequestError: there is no such session, or the policy can't be used here.
        """
        if not isinstance(policy, Unset):
            await self._set_policy(caller, session_id, policy)
        await self._set_hints(caller, session_id, retention, ttl_s, priority)
        return await self._inspector.session(caller, session_id)

    async def _set_hints(
        self,
        caller: Caller,
        session_id: str,
        retention: RetentionName | None,
        ttl_s: float | None,
        priority: Priority | None,
    ) -> None:
        live = await self._sessions.open(caller, session_id)
        allowed = (await self._quotas.of(caller.user_id)).allowed(priority or live.hints.priority)
        hints = replace(
            live.hints,
            retention=retention or live.hints.retention,
            priority=allowed,
            ttl_s=live.hints.ttl_s if ttl_s is None else ttl_s,
        )
        if hints == live.hints:
            return
        if not await self._store.set_hints(caller.user_id, live.id, hints):
            raise conversation_not_found(session_id)
        live.hints = hints
        self._retention.hint(live)

    async def park(self, caller: Caller, session_id: str) -> SessionView:
        """Move the session's KV to the tiers below the device; without tiers it is freed.

        Raises:
            RequestError: there is no such session, or a turn runs in it.
        """
        live = await self._sessions.open(caller, session_id)
        if not is_free(live.state):
            raise busy(session_id)
        self._retention.park(live)
        return await self._inspector.session(caller, session_id)
