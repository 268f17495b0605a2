"""Selects the context policy of a turn and runs it. Asyncio thread only."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.ipc.client import EngineClient
from policies.laws import BrokenLawError, check_context
from policies.plan import ContextPlan
from policies.protocol import ContextPolicy
from policies.toolkit import ParameterError
from policies.views import ConversationView
from sessiond.domain import Caller, PolicyChoice, TurnRequest
from sessiond.errors import RequestError
from sessiond.sessions.live_session import LiveSession
from sessiond.sessions.request_form import pack_policy, unpack_policy
from sessiond.store.store import Store

logger = logging.getLogger(__name__)

NONE = "none"
_WINDOW = "sliding_window"
_MAX_KNOWN_USERS = 10_000

MakePolicy = Callable[[str, Mapping[str, int | float | str]], ContextPolicy]
"""Makes a policy from its name and parameters; raises ParameterError."""


class ContextPolicies:
    """Precedence: request, session, user, server. `make` creates a policy by name."""

    def __init__(
        self,
        *,
        engine: EngineClient,
        store: Store,
        clock: Callable[[], float],
        default: PolicyChoice,
        make: MakePolicy,
    ) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock
        self._default = default
        self._make = make
        self._of_users: OrderedDict[str, PolicyChoice | None] = OrderedDict()  # last used last

    async def in_force(self, live: LiveSession, request: TurnRequest) -> PolicyChoice | None:
        """The policy in force; None: no turn may be dropped.

        Raises:
            RequestError: the policy can't be used on this engine.
        """
        if request.truncation == "disabled":
            return None
        choice = request.policy or live.policy or await self.of_user(live.user_id)
        if choice.type == NONE:
            if request.truncation != "auto":
                return None
            choice = replace(choice, type=_WINDOW, parameters={})
        self.check(choice)
        return choice

    async def of_user(self, user_id: str) -> PolicyChoice:
        """The policy of a user's sessions that have none of their own."""
        if user_id not in self._of_users:
            choice = unpack_policy(await self._store.user_policy(user_id))
            self._of_users.setdefault(user_id, choice)  # it may have been set meanwhile
        self._of_users.move_to_end(user_id)
        while len(self._of_users) > _MAX_KNOWN_USERS:
            self._of_users.popitem(last=False)
        return self._of_users[user_id] or self._default

    async def set_of_user(self, caller: Caller, user_id: str, choice: PolicyChoice | None) -> None:
        """Replace the policy of the caller or, for an admin, of any user; None: the default.

        Raises:
            RequestError: the caller may not do so, or the policy can't be used on this engine.
        """
        if user_id != caller.user_id and not caller.is_admin:
            raise RequestError(
                "permission_denied", "only an admin may change the policy of other users"
            )
        if choice is not None:
            self.check(choice)
        await self._store.set_user_policy(user_id, pack_policy(choice), self._clock())
        self._of_users[user_id] = choice

    def check(self, choice: PolicyChoice) -> None:
        """Check that a policy can be used on this engine.

        Raises:
            RequestError: the engine does not support its edits, or there is no such policy.
        """
        if choice.fidelity == "shifted" and not self._engine.info.shiftable:
            raise RequestError(
                "invalid_value",
                "fidelity must be 'exact' with this model's positions or attention "
                f"{self._engine.info.attention} (got 'shifted')",
                param="context_management",
            )
        self._policy(choice)

    def may_summarize(self, choice: PolicyChoice) -> bool:
        """Whether the policy declares that it may request summaries.

        Raises:
            RequestError: there is no such policy.
        """
        return bool(getattr(self._policy(choice), "summarizes", False))

    def plan(self, choice: PolicyChoice, view: ConversationView) -> ContextPlan:
        """Run the policy and check its plan.

        Raises:
            RequestError: `internal_error`, the policy failed or its plan breaks a law.
        """
        policy = self._policy(choice)
        try:
            plan = policy.plan(view)
            check_context(view, plan)
        except BrokenLawError as error:
            logger.error("context policy %s returned an invalid plan: %s", choice.type, error)  # noqa: TRY400 -- what is wrong is the plan, not the call
            message = f"the context policy {choice.type!r} returned an invalid plan: {error}"
            raise RequestError("internal_error", message) from error
        except Exception as error:
            logger.exception("context policy %s failed", choice.type)
            message = f"the context policy {choice.type!r} failed"
            raise RequestError("internal_error", message) from error
        return plan

    def _policy(self, choice: PolicyChoice) -> ContextPolicy:
        try:
            return self._make(choice.type, choice.parameters)
        except ParameterError as error:
            message = f"{error.name} of the context policy {choice.type!r} "
            message += f"must be {error.allowed} (got {error.value!r})"
            raise RequestError("invalid_value", message, param=error.name) from error
