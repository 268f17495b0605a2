"""What a turn will do to its session's context: decided before anything is written or computed."""

from dataclasses import dataclass

from sessiond.errors import RequestError
from sessiond.facts import UNSET, ContextChanged, InputItem, TurnRequest
from sessiond.sessions.admission import admit_prefill, admit_reply, room_of
from sessiond.sessions.live import LiveSession
from sessiond.sessions.parts import Parts
from sessiond.sessions.transcript import Transcript
from sessiond.store.records import NewPrompt, Prompt

_SEEDS = 2**63  # as many as the column holds


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    """A turn's place in the context, and its bounds. `new_prompt`: the front is stored with it."""

    parent_id: str | None
    prompt: Prompt
    new_prompt: NewPrompt | None
    start_tokens: int
    input_ids: tuple[int, ...]
    awaits_reply: bool
    max_output_tokens: int
    seed: int
    changed: ContextChanged | None


class Planner:
    """Plans turns on a session that the caller holds."""

    def __init__(self, parts: Parts, *, transcript: Transcript) -> None:
        self._engine = parts.engine
        self._transcript = transcript
        self._limits = parts.limits
        self._new_id = parts.new_id
        self._new_seed = parts.new_seed

    async def plan(self, live: LiveSession, request: TurnRequest) -> TurnPlan:
        """Decide front, input ids, room and seed.

        Raises:
            RequestError: there is nothing to answer, or it can't fit.
        """
        if request.generate and not request.input and not live.awaits_reply:
            raise RequestError(
                "invalid_value", "input is empty and nothing awaits a reply", param="input"
            )
        opening_text, items = _opening(live, request.input)
        new_prompt = await self._front(live, _wanted_text(live, request), opening_text)
        prompt = new_prompt.stored if new_prompt else _present(live)
        input_ids = await self._transcript.delta(items, generate=request.generate)
        start_tokens = prompt.tokens + live.tokens - (live.prompt.tokens if live.prompt else 0)
        return TurnPlan(
            parent_id=live.tip_id,
            prompt=prompt,
            new_prompt=new_prompt,
            start_tokens=start_tokens,
            input_ids=input_ids,
            awaits_reply=_awaits_reply(live, request.input, generate=request.generate),
            max_output_tokens=self._admit(request, start_tokens + len(input_ids)),
            seed=(self._new_seed() if request.seed is None else request.seed) % _SEEDS,
            changed=_changed(live, start_tokens) if new_prompt else None,
        )

    async def _front(
        self, live: LiveSession, text: str | None, opening_text: str | None
    ) -> NewPrompt | None:
        """None: the session has this one already."""
        present = live.prompt
        if present is not None and (present.text, present.opening_text) == (text, opening_text):
            return None
        return await self.new_front(text, opening_text)

    async def new_front(self, text: str | None, opening_text: str | None) -> NewPrompt:
        """A front to be stored. Without any text it is the template's own default.

        Raises:
            RequestError: the template refuses a text.
        """
        ids = await self._transcript.front(text, opening_text)
        return NewPrompt(id=self._new_id("sys"), text=text, opening_text=opening_text, ids=ids)

    def _admit(self, request: TurnRequest, before: int) -> int:
        close = len(self._transcript.close_ids) if request.generate else 0
        room = room_of(self._engine.info, before=before, close=close)
        if request.generate:
            return admit_reply(
                room,
                wanted=request.max_output_tokens,
                default=self._limits.default_max_output_tokens,
            )
        if before == 0:
            raise RequestError("invalid_value", "there is nothing to prefill", param="input")
        admit_prefill(room)
        return 1


def _present(live: LiveSession) -> Prompt:
    if live.prompt is None:
        raise RuntimeError(f"session {live.id} has no front")
    return live.prompt


def _wanted_text(live: LiveSession, request: TurnRequest) -> str | None:
    """The instructions that hold from this turn on: absent or null carries over, "" clears."""
    if request.instructions is UNSET or request.instructions is None:
        return live.prompt.text if live.prompt else None
    return str(request.instructions) or None


def _opening(
    live: LiveSession, items: tuple[InputItem, ...]
) -> tuple[str | None, tuple[InputItem, ...]]:
    """The system message that opens the conversation, and the messages that follow.

    The template writes one that comes first in the place of its default, so it is encoded with
    the front, and stays there when the instructions change.
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


def _changed(live: LiveSession, tokens_after: int) -> ContextChanged | None:
    if live.tip_id is None:
        return None  # there was nothing that the model saw
    return ContextChanged(
        session_id=live.id,
        reason="instructions",
        dropped_turns=0,
        tokens_before=live.tokens,
        tokens_after=tokens_after,
    )
