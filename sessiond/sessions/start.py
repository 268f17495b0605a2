"""Starts a bound turn that holds the turn lock: plan, commit 1, submit."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from engine.ids import SessionId, TurnId
from engine.ipc.client import EngineClient, TurnEvents
from engine.ipc.messages import Sampling, SubmitTurn, TurnCounts
from sessiond.domain import ItemView, TurnAccepted, TurnError
from sessiond.errors import RequestError
from sessiond.quota import Account, Quota
from sessiond.sessions.demand import PoolDemand
from sessiond.sessions.engine_sync import EngineSync
from sessiond.sessions.finish import failed, usage_of
from sessiond.sessions.fit import Patience
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import LiveSession
from sessiond.sessions.pending_endings import PendingEndings
from sessiond.sessions.plan import Planner, TurnPlan
from sessiond.sessions.quotas import Quotas, StartingTurn, terms_of
from sessiond.sessions.refusals import busy, conversation_not_found
from sessiond.sessions.request_form import pack_policy, pack_request
from sessiond.sessions.transcript import Transcript
from sessiond.sessions.turn import EventLog, Turn
from sessiond.store.errors import BaseGoneError, NotOwnerError, QuotaExceededError, StoreError
from sessiond.store.records import AbortedTurn, NewSession, NewTurn
from sessiond.store.store import Store

logger = logging.getLogger(__name__)

_TRIES = 3


class TurnStarter:
    """Stateless between turns."""

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        engine: EngineClient,
        store: Store,
        sessions: LiveSessions,
        pending_endings: PendingEndings,
        limits: ServiceLimits,
        clock: Callable[[], float],
        ticks: Callable[[], float],
        new_id: Callable[[str], str],
        demand: PoolDemand,
        planner: Planner,
        engine_sync: EngineSync,
        transcript: Transcript,
        quotas: Quotas,
    ) -> None:
        self._engine = engine
        self._store = store
        self._sessions = sessions
        self._planner = planner
        self._engine_sync = engine_sync
        self._transcript = transcript
        self._limits = limits
        self._demand = demand
        self._quotas = quotas
        self._pending_endings = pending_endings
        self._clock = clock
        self._ticks = ticks
        self._new_id = new_id

    async def start(self, turn: Turn) -> TurnEvents:
        """Start the turn; it holds the turn lock.

        Raises:
            RequestError: the turn can't be served; no context has changed.
        """
        live = turn.live
        try:
            self._demand.check(turn.owner)
            async with self._quotas.starting(
                turn.caller, opens=not live.stored, base=live.base_session_id
            ) as place:
                plan, accepted, account = await self._plan_and_store(turn, place)
            try:
                command = self._command(live, plan, accepted, account.quota)
                events = await self._engine_sync.submit(live, plan, command)
            except Exception as error:
                await self._store_failed(turn, plan, accepted, error)
                raise
        except QuotaExceededError as error:
            raise self._quotas.refused(error) from error
        except StoreError as error:
            logger.warning("turn %s could not be stored: %s", turn.response_id, error)
            raise RequestError("internal_error", "the turn could not be stored") from error
        turn.begin(
            plan,
            accepted,
            headers=self._quotas.headers_of(account),
            log=EventLog(
                max_entries=self._limits.replay_events, max_bytes=self._limits.replay_event_bytes
            ),
        )
        return events

    async def _plan_and_store(
        self, turn: Turn, place: StartingTurn
    ) -> tuple[TurnPlan, TurnAccepted, Account]:
        """Plan the turn and make commit 1; retry if another replica owned the session."""
        for _ in range(_TRIES):
            await self._sessions.refresh(turn.live)
            patience = self._patience(turn)
            plan = await self._planner.plan(turn.live, turn.request, patience=patience)
            accepted = self._accept(turn, plan)
            most_tokens = plan.most_tokens(generate=accepted.request.generate)
            try:
                account = await place.commit(
                    most_tokens, partial(self._admit_and_store, turn, plan, accepted)
                )
            except NotOwnerError:
                await self._reclaim(turn)
            except BaseGoneError as error:
                raise conversation_not_found(turn.live.id) from error
            except QuotaExceededError:
                raise
            except StoreError as error:
                # A commit that raised may have succeeded: its row would stay `running`.
                self._pending_endings.add(self._failure(turn, plan, accepted, error))
                raise
            else:
                return plan, accepted, account
        raise busy(turn.live.id)

    async def _admit_and_store(self, turn: Turn, plan: TurnPlan, accepted: TurnAccepted) -> Account:
        """Count the turn's demand and make commit 1; a turn that isn't stored isn't counted."""
        self._demand.admit(
            turn.response_id,
            plan.start_tokens + len(plan.input_ids),
            user_id=turn.owner,
            pool_tokens=self._engine.info.total_blocks * self._engine.info.block_size,
        )
        try:
            return await self._store_running(turn, plan, accepted)
        except BaseException:
            self._demand.leave(turn.response_id)
            raise

    async def _reclaim(self, turn: Turn) -> None:
        """Take ownership of the session back from another replica.

        Raises:
            RequestError: it is closed, busy elsewhere, or has continued after the named response.
        """
        await self._sessions.reclaim(turn.live)
        named = turn.request.previous_response_id
        if named is not None and turn.live.tip_id != named:
            raise busy(turn.live.id)

    def _patience(self, turn: Turn) -> Patience:
        seconds = math.inf
        if self._limits.turn_timeout_s:
            seconds = self._limits.turn_timeout_s
        if turn.request.deadline_ms is not None:
            left = turn.request.deadline_ms / 1000 - (self._ticks() - turn.received_at)
            seconds = min(seconds, max(0.0, left))
        return Patience(stopped=turn.stopped, seconds=seconds, priority=turn.request.priority)

    def _accept(self, turn: Turn, plan: TurnPlan) -> TurnAccepted:
        return TurnAccepted(
            response_id=turn.response_id,
            session_id=turn.live.id,
            message_id=turn.message_id,
            previous_response_id=turn.request.previous_response_id,
            model=self._engine.info.model,
            instructions=plan.prompt.text,
            created_at=self._clock(),
            request=replace(
                turn.request,
                truncation="auto" if plan.trims else "disabled",
                store=not turn.live.volatile,
            ),
        )

    async def _store_running(self, turn: Turn, plan: TurnPlan, accepted: TurnAccepted) -> Account:
        """Make commit 1, which reserves the turn's worst case in its user's quota."""
        live = turn.live
        items = new_items(accepted, self._new_id)
        account = await self._store.begin_turn(
            new_turn(turn.caller.user_id, plan, accepted, items),
            session=None if live.stored else self._session_row(live, plan, accepted),
            prompt=plan.new_prompt,
            reservation=self._quotas.reservation(
                accepted.response_id, plan.most_tokens(generate=accepted.request.generate)
            ),
        )
        live.stored = True
        if live.prompt is None:  # this turn brings the system prefix
            live.prompt, live.tokens = plan.prompt, plan.start_tokens
        return account

    def _session_row(self, live: LiveSession, plan: TurnPlan, accepted: TurnAccepted) -> NewSession:
        return NewSession(
            id=live.id,
            user_id=live.user_id,
            model=accepted.model,
            vocab_size=self._engine.info.vocab_size,
            prompt_id=live.prompt.id if live.prompt else plan.prompt.id,
            tip_id=live.tip_id,
            context_tokens=live.tokens if live.prompt else plan.start_tokens,
            created_at=accepted.created_at,
            hints=live.hints,
            context_policy=pack_policy(live.policy),
            fidelity=live.layout.fidelity if live.layout else "exact",
        )

    def _command(
        self, live: LiveSession, plan: TurnPlan, accepted: TurnAccepted, quota: Quota
    ) -> SubmitTurn:
        request = accepted.request
        return SubmitTurn(
            turn=TurnId(accepted.response_id),
            session=SessionId(accepted.session_id),
            ids=list(plan.input_ids),
            close_ids=self._transcript.close_ids if request.generate else [],
            stop_ids=self._transcript.stop_ids,
            draft_ids=[] if plan.awaits_reply else self._transcript.user_start,
            sampling=Sampling(
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                min_p=request.min_p,
                seed=plan.seed,
                stop=request.stop,
                repetition_penalty=request.repetition_penalty,
                frequency_penalty=request.frequency_penalty,
                presence_penalty=request.presence_penalty,
                logit_bias=request.logit_bias,
            ),
            max_output_tokens=plan.max_output_tokens,
            generate=request.generate,
            terms=terms_of(quota, live, request.priority),
        )

    async def _store_failed(
        self, turn: Turn, plan: TurnPlan, accepted: TurnAccepted, error: Exception
    ) -> None:
        row = self._failure(turn, plan, accepted, error)
        try:
            await self._store.abort_turn(row)
        except StoreError:
            logger.warning("the end of turn %s could not be stored; it is retried", row.id)
            self._pending_endings.add(row)

    def _failure(
        self, turn: Turn, plan: TurnPlan, accepted: TurnAccepted, error: Exception
    ) -> AbortedTurn:
        code = error.code if isinstance(error, RequestError) else "internal_error"
        end = failed(
            TurnError(code=code, message=str(error)),
            usage_of(TurnCounts(), plan.layout),
            user_id=turn.caller.user_id,
            accepted=accepted,
            now=self._clock(),
        )
        return end.row


def new_items(accepted: TurnAccepted, new_id: Callable[[str], str]) -> tuple[ItemView, ...]:
    """The input messages of a turn under new ids: a client may send the same id twice."""
    return tuple(
        ItemView(
            id=new_id("msg"),
            session_id=accepted.session_id,
            response_id=accepted.response_id,
            role=item.role,
            text=item.text,
            status="completed",
            created_at=accepted.created_at,
        )
        for item in accepted.request.input
    )


def new_turn(
    user_id: str, plan: TurnPlan, accepted: TurnAccepted, items: tuple[ItemView, ...]
) -> NewTurn:
    """The row that commit 1 writes."""
    return NewTurn(
        id=accepted.response_id,
        user_id=user_id,
        session_id=accepted.session_id,
        parent_id=plan.parent_id,
        prompt_id=plan.prompt.id,
        message_id=accepted.message_id,
        model=accepted.model,
        generate=accepted.request.generate,
        awaits_reply=plan.awaits_reply,
        request=pack_request(accepted.request),
        previous_response_id=accepted.previous_response_id,
        seed=plan.seed,
        start_tokens=plan.start_tokens,
        input_ids=plan.input_ids,
        items=items,
        created_at=accepted.created_at,
        epoch=plan.epoch,
        parts=plan.parts,
    )
