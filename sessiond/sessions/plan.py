"""Plans a turn's change of its session's context, before anything is written or computed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from engine.ipc.client import EngineClient
from engine.ipc.messages import Edit
from policies.plan import KeepAll, KeepTurns, Summarize
from policies.views import ConversationView
from sessiond.domain import (
    UNSET,
    ContextChanged,
    InputItem,
    PolicyChoice,
    SummaryOverdue,
    TurnRequest,
)
from sessiond.errors import RequestError
from sessiond.quota import Quota
from sessiond.sessions.context_policies import ContextPolicies
from sessiond.sessions.demand import PoolDemand
from sessiond.sessions.fit import (
    Fit,
    Patience,
    Reason,
    Summaries,
    changed,
    conversation_view,
    cut_short,
    fit,
    keep_end,
    kept,
    open_tokens,
    overdue,
    summarized,
    trimmed_for_memory,
)
from sessiond.sessions.input_turns import InputTurns, split, stored_part
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.live import LiveSessions
from sessiond.sessions.live_session import LiveSession
from sessiond.sessions.quotas import Quotas
from sessiond.sessions.transcript import Transcript, of_system_prefix, with_items
from sessiond.sessions.turn_size import Room, admit_prefill, admit_reply, reserve_reply, room_of
from sessiond.store.context_layout import ContextLayout, VisibleSpans
from sessiond.store.records import NewPrompt, Prompt

_SEEDS = 2**63  # exclusive maximum of the SQL column


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    """A turn's place in the context, and its bounds. `new_prompt`: a system prefix to store.

    `epoch`: ownership epoch of this replica. `digest`: of all messages in the context and the
    turn's input; None: not known. `layout`: the context layout before the turn's ids. `view` and
    `edit`: see `Fit`. `trims`: a context policy may drop turns. `is_cut`: a part of the turn's
    input is dropped. `parts`: see `TurnSize`.
    """

    epoch: int
    parent_id: str | None
    prompt: Prompt
    new_prompt: NewPrompt | None
    layout: ContextLayout
    view: VisibleSpans | None
    edit: Edit | None
    trims: bool
    is_cut: bool
    input_ids: tuple[int, ...]
    parts: tuple[int, ...]
    awaits_reply: bool
    max_output_tokens: int
    seed: int
    changes: tuple[ContextChanged | SummaryOverdue, ...]
    digest: str | None

    @property
    def start_tokens(self) -> int:
        """Visible tokens before the turn's own ids."""
        return self.layout.tokens

    @property
    def is_trimmed_for_memory(self) -> bool:
        """Whether turns were dropped because memory is short."""
        notices = (one for one in self.changes if isinstance(one, ContextChanged))
        return any(one.reason == "memory_pressure" for one in notices)

    @property
    def own_tokens(self) -> int:
        """Tokens of the turn's input without the whole turns that it starts with."""
        return len(self.input_ids) - sum(self.parts)

    def most_tokens(self, *, generate: bool) -> int:
        """Worst case of the turn: all tokens before the reply recomputed, and the longest reply."""
        replies = self.max_output_tokens if generate else 0
        return self.start_tokens + len(self.input_ids) + replies

    def layout_after(self, reply_tokens: int) -> ContextLayout:
        """The context layout after the turn is committed with `reply_tokens` more ids."""
        tokens = len(self.input_ids) + reply_tokens
        return self.layout.grown_by(self.parts, tokens, awaits_reply=self.awaits_reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnStart:
    """A turn being planned. `before`: the parent's layout; `layout`: with the system prefix.

    `layout` also has the `earlier` turns of the input, which a policy may drop; `input_tokens` are
    those of the rest, of which `cut_tokens` are cut off.
    """

    live: LiveSession
    request: TurnRequest
    before: ContextLayout
    layout: ContextLayout
    input_tokens: int
    has_new_prefix: bool
    patience: Patience | None
    quota: Quota
    earlier: tuple[int, ...] = ()
    cut_tokens: int = 0

    def with_earlier(self, parts: tuple[int, ...]) -> "_TurnStart":
        """The start with whole turns of the input, in tokens, that a policy may drop."""
        layout, tokens = self.layout, sum(parts)
        if parts:
            layout = layout.grown_by(parts, tokens, awaits_reply=False)
        return replace(self, layout=layout, input_tokens=self.input_tokens - tokens, earlier=parts)


class Planner:
    """Plans turns; the caller holds the session's turn lock."""

    def __init__(  # noqa: PLR0913 -- collaborators, passed by keyword
        self,
        *,
        engine: EngineClient,
        sessions: LiveSessions,
        limits: ServiceLimits,
        new_id: Callable[[str], str],
        new_seed: Callable[[], int],
        transcript: Transcript,
        policies: ContextPolicies,
        quotas: Quotas,
        summaries: Summaries,
        demand: PoolDemand,
    ) -> None:
        self._engine = engine
        self._sessions: LiveSessions = sessions
        self._transcript = transcript
        self._policies = policies
        self._quotas = quotas
        self._summaries = summaries
        self._demand = demand
        self._limits = limits
        self._new_id = new_id
        self._new_seed = new_seed

    async def plan(
        self,
        live: LiveSession,
        request: TurnRequest,
        *,
        runs: bool = True,
        patience: Patience | None = None,
    ) -> TurnPlan:
        """Decide system prefix, context layout, input ids, reply bound and seed.

        Not `runs`: the items only join the context; the next turn that runs makes room for them.
        `patience`: how long to wait for a summary; None: not at all.

        Raises:
            RequestError: there is no input to answer, or it does not fit.
        """
        if request.generate and not request.input and not live.awaits_reply:
            raise RequestError(
                "invalid_value",
                "input must not be empty unless a message awaits a reply",
                param="input",
            )
        _check_bias(request, self._engine.info.vocab_size)
        choice = await self._policies.in_force(live, request)
        opening_text, items = _opening(live, request.input)
        new_prompt = await self._system_prefix(live, _wanted_text(live, request), opening_text)
        prompt = new_prompt.stored if new_prompt else _present(live)
        turns = split(items)
        *earlier, own = await self._transcript.by_turns(turns, generate=request.generate)
        given = InputTurns(earlier=tuple(earlier), own=own)
        before = await self._sessions.layout(live)
        start = _TurnStart(
            live=live,
            request=request,
            before=before,
            layout=replace(before, prefix_tokens=prompt.tokens),
            input_tokens=len(given.ids),
            has_new_prefix=new_prompt is not None,
            patience=patience,
            quota=await self._quotas.of(live.user_id),
        )
        last: Sequence[InputItem] = items
        # An unanswered message and the first turn of the input are one turn, which stays whole.
        if choice is not None and not (runs and before.awaits_reply):
            start, last = start.with_earlier(given.parts), turns[-1]
        given = await self._shortened(start, choice, last, given)
        own_tokens = len(given.ids) - sum(start.earlier)
        start = replace(start, input_tokens=own_tokens, cut_tokens=given.dropped)
        fitted, given, max_output_tokens, changes = await self._fit(start, choice, given, runs=runs)
        return TurnPlan(
            epoch=live.epoch,
            parent_id=live.tip_id,
            prompt=prompt,
            new_prompt=new_prompt,
            layout=fitted.layout,
            view=fitted.view,
            edit=fitted.edit,
            trims=choice is not None,
            is_cut=bool(given.dropped),
            input_ids=given.ids,
            parts=given.parts,
            awaits_reply=_awaits_reply(live, request.input, generate=request.generate),
            max_output_tokens=max_output_tokens,
            seed=(self._new_seed() if request.seed is None else request.seed) % _SEEDS,
            changes=changes,
            digest=with_items(_digest_before(live, new_prompt), items),
        )

    async def _fit(
        self, start: _TurnStart, choice: PolicyChoice | None, given: InputTurns, *, runs: bool
    ) -> tuple[Fit, InputTurns, int, tuple[ContextChanged | SummaryOverdue, ...]]:
        """The context layout, the input that is left, the reply bound and the client events."""
        room = self._room(start, choice)
        decided, fidelity = start.layout, None
        reason: Reason = "policy"
        late: tuple[SummaryOverdue, ...] = ()
        if choice is not None and runs:
            fidelity = choice.fidelity
            if start.live.tip_id is not None or start.earlier:
                decided, reason, late = await self._decide(start, choice, room)
                given = given.kept(start.before, decided) if start.earlier else given
        # items that no engine has computed may be more than one can hold
        is_too_long = start.before.tokens > min(room.max_model_len, room.pool)
        fitted = fit(
            start.before,
            stored_part(start.before, decided) if start.earlier else decided,
            fidelity=fidelity,
            must_rebuild=start.has_new_prefix or is_too_long,
        )
        if choice is None or runs:  # else the next turn that runs drops turns
            room = replace(room, before=fitted.layout.tokens + len(given.ids))
        changes = _changes(start, fitted, given, reason)
        return fitted, given, self._admit(start.request, room), (*changes, *late)

    async def _shortened(
        self,
        start: _TurnStart,
        choice: PolicyChoice | None,
        items: Sequence[InputItem],
        given: InputTurns,
    ) -> InputTurns:
        """The input; the end of `items`, its new turn, if that is allowed and all can't fit."""
        request = start.request
        if choice is None or choice.oversize != "keep_end" or request.truncation != "auto":
            return given
        room = self._room(start, choice)
        if room.before + room.close + request.generate <= room.most:
            return given
        reply = request.max_output_tokens or self._limits.default_max_output_tokens
        # the same reserve as for a reply without a requested length
        reserved = min(reply, max(1, room.most // 4)) if request.generate else 0
        most_tokens = room.most - (room.before - start.input_tokens) - room.close - reserved

        def encode(part: Sequence[InputItem]) -> Awaitable[tuple[int, ...]]:
            return self._transcript.delta(part, generate=request.generate)

        end = await keep_end(items, most_tokens, encode)
        if end is None:
            return given
        return (given if start.earlier else given.joined()).with_own(end)

    def _room(self, start: _TurnStart, choice: PolicyChoice | None) -> Room:
        """The room for what can't be dropped: system prefix, unanswered messages, the turn."""
        layout = start.layout
        room = room_of(
            self._engine.info,
            before=layout.prefix_tokens + open_tokens(layout) + start.input_tokens,
            close=len(self._transcript.close_ids) if start.request.generate else 0,
        )
        caps = start.quota.context_caps
        if choice is not None:
            room = replace(room, trims=True)
            cap = choice.parameters.get("max_tokens")
            if isinstance(cap, int):
                caps["the context policy's max_tokens"] = cap
        name = min(caps, key=caps.__getitem__, default="")
        return replace(room, cap=caps.get(name), cap_name=name)

    async def _decide(
        self, start: _TurnStart, choice: PolicyChoice, room: Room
    ) -> tuple[ContextLayout, Reason, tuple[SummaryOverdue, ...]]:
        """The context layout after the policy, the reason of a change, an overdue summary."""
        layout = start.layout
        view = self._view(start, room)
        match self._policies.plan(choice, view):
            case KeepAll() if (share := self._share(choice)) is not None:
                priority = start.quota.allowed(start.request.priority or start.live.hints.priority)
                plan = trimmed_for_memory(view, priority, share)
                return kept(layout, plan), "memory_pressure", ()
            case KeepAll() | KeepTurns() as plan:
                return kept(layout, plan), "trimmed", ()
            case Summarize() as plan:
                stored = replace(plan, keep_last=plan.keep_last - len(start.earlier))
                if start.earlier and stored.keep_last <= 0:
                    # it would be written of turns of the input, which no engine has computed
                    return kept(layout, plan.fallback), "trimmed", ()
                summary = await self._summaries.find(
                    start.live, start.before, stored, start.patience
                )
                if summary is not None and summary.ref.tokens <= plan.summary_tokens:
                    return summarized(layout, summary), "summarized", ()
                late = overdue(start.live.id, start.before, plan)
                return kept(layout, plan.fallback), "summary_failed", (late,) if late else ()
            case _ as unreachable:
                assert_never(unreachable)

    def _share(self, choice: PolicyChoice) -> int | None:
        """The share of the pool that a conversation may be cut to now; None: it may not."""
        return self._demand.share if choice.under_pressure == "trim_history" else None

    def _view(self, start: _TurnStart, room: Room) -> ConversationView:
        request, reply = start.request, 0
        if request.generate:
            default = self._limits.default_max_output_tokens
            reply = reserve_reply(room, wanted=request.max_output_tokens, default=default)
        return conversation_view(
            start.layout,
            prompt_tokens=start.input_tokens,
            output_tokens=reply + room.close,
            limit_tokens=room.most,
        )

    async def foresee(
        self, live: LiveSession, request: TurnRequest, *, input_tokens: int
    ) -> tuple[ContextLayout, Summarize] | None:
        """The summary needed if the next turn resembles the last; None: none.

        `request` and `input_tokens` are those of the last turn, which has joined the context.

        Raises:
            RequestError: the policy failed.
        """
        choice = await self._policies.in_force(live, request)
        if choice is None or not self._policies.may_summarize(choice):
            return None
        layout = await self._sessions.layout(live)
        start = _TurnStart(
            live=live,
            request=request,
            before=layout,
            layout=layout,
            input_tokens=input_tokens,
            has_new_prefix=False,
            patience=None,
            quota=await self._quotas.of(live.user_id),
        )
        view = self._view(start, self._room(start, choice))
        plan = self._policies.plan(choice, view)
        return (layout, plan) if isinstance(plan, Summarize) else None

    async def _system_prefix(
        self, live: LiveSession, text: str | None, opening_text: str | None
    ) -> NewPrompt | None:
        """The new system prefix; None: unchanged."""
        present = live.prompt
        if present is not None and (present.text, present.opening_text) == (text, opening_text):
            return None
        return await self.new_system_prefix(text, opening_text, prefix=live.prefixed("sys"))

    async def new_system_prefix(
        self, text: str | None, opening_text: str | None, *, prefix: str = "sys"
    ) -> NewPrompt:
        """Encode a system prefix to be stored; without text, the template's default.

        Raises:
            RequestError: the template rejects a text.
        """
        ids = await self._transcript.system_prefix(text, opening_text)
        return NewPrompt(id=self._new_id(prefix), text=text, opening_text=opening_text, ids=ids)

    def _admit(self, request: TurnRequest, room: Room) -> int:
        if request.generate:
            return admit_reply(
                room,
                wanted=request.max_output_tokens,
                default=self._limits.default_max_output_tokens,
            )
        if room.before == 0:
            raise RequestError("invalid_value", "input must not be empty", param="input")
        admit_prefill(room)
        return 1


def _present(live: LiveSession) -> Prompt:
    if live.prompt is None:
        raise RuntimeError(f"session {live.id} has no system prefix")
    return live.prompt


def _check_bias(request: TurnRequest, vocab_size: int) -> None:
    for token, _ in request.logit_bias:
        if token >= vocab_size:
            raise RequestError(
                "invalid_value",
                f"logit_bias must name ids below {vocab_size}, the size of the model's vocabulary "
                f"(got {token})",
                param="logit_bias",
            )


def _digest_before(live: LiveSession, new_prompt: NewPrompt | None) -> str | None:
    """The digest of the context; None after a change of the system prefix."""
    if live.tip_id is None:
        system_prefix = new_prompt or _present(live)
        return of_system_prefix(system_prefix.text, system_prefix.opening_text)
    return live.digest if new_prompt is None else None


def _wanted_text(live: LiveSession, request: TurnRequest) -> str | None:
    """The instructions from this turn on: absent or null keeps them, "" clears them."""
    if request.instructions is UNSET or request.instructions is None:
        return live.prompt.text if live.prompt else None
    return str(request.instructions) or None


def _opening(
    live: LiveSession, items: tuple[InputItem, ...]
) -> tuple[str | None, tuple[InputItem, ...]]:
    """The system message that opens the conversation, and the messages that follow.

    A system message at the start replaces the template's default. It is encoded with the system
    prefix and stays when the instructions change.
    """
    if live.tip_id is not None:
        return (live.prompt.opening_text if live.prompt else None), items
    if items and items[0].role in {"system", "developer"}:
        return items[0].text, items[1:]
    return None, items


def _awaits_reply(live: LiveSession, items: tuple[InputItem, ...], *, generate: bool) -> bool:
    if generate:
        return False
    return items[-1].role != "assistant" if items else live.awaits_reply


def _changes(
    start: _TurnStart, fitted: Fit, given: InputTurns, reason: Reason
) -> tuple[ContextChanged, ...]:
    """The client events in order: a new system prefix, the change of the turns, a cut input."""
    session_id, after = start.live.id, fitted.layout
    whole = replace(start.layout, fidelity=after.fidelity)  # new prefix, unchanged turns
    left = after.grown_by(given.parts, sum(given.parts), awaits_reply=False)
    if not start.earlier:
        left = after
    is_stored = start.live.tip_id is not None  # else nothing was visible before
    notices = []
    if is_stored and start.has_new_prefix:
        middle = replace(start.before, prefix_tokens=after.prefix_tokens, fidelity=after.fidelity)
        notices.append(changed(session_id, "instructions", start.before, middle))
    if left != whole and (is_stored or start.earlier):
        notices.append(changed(session_id, reason, whole, left))
    elif is_stored and fitted.view is not None and not start.has_new_prefix:
        notices.append(changed(session_id, "policy", start.before, after))
    cut = start.cut_tokens
    if cut:
        own = start.input_tokens
        notices.append(cut_short(session_id, left, own + cut, own))
    return tuple(notices)
