"""Admission checks: which turns are refused before any work. Pure."""

from dataclasses import dataclass
from typing import Literal

from engine.ipc.messages import SubmitTurn
from engine.kv.partition import worst_case_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason why a turn is refused."""

    code: Literal["request_too_large", "queue_full", "internal_error", "engine_restarted"]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionView:
    """State at a turn's arrival. `context_tokens` is None for an unknown session.

    `is_first`: the owner has no running or waiting turn. A limit of 0 means no limit.
    """

    context_tokens: int | None
    busy: bool
    turns: int
    max_turns: int
    is_first: bool = False
    total_blocks: int
    block_size: int
    max_model_len: int
    max_session_blocks: int = 0
    max_user_blocks: int = 0


def refusal(command: SubmitTurn, view: AdmissionView) -> Refusal | None:
    """Return why a turn is refused, or None when it may wait and run.

    The turn's worst case is compared with the whole pool: a turn that passes can always finish when
    it runs alone. A turn that does not pass would block all turns behind it.
    """
    if view.context_tokens is None:
        return Refusal(code="engine_restarted", message="the engine does not know this session")
    if view.busy:
        return Refusal(code="internal_error", message="the session's last turn has not ended")
    tokens = view.context_tokens + len(command.ids)
    if command.generate and not tokens:
        return Refusal(code="internal_error", message="the context must not be empty")
    return _too_large(command, view, tokens) or _no_place(view)


def _too_large(command: SubmitTurn, view: AdmissionView, tokens: int) -> Refusal | None:
    needed = worst_case_blocks(
        context_tokens=tokens - len(command.ids),
        prompt_tokens=len(command.ids),
        max_output_tokens=command.max_output_tokens if command.generate else 0,
        close_tokens=len(command.close_ids),
        block_size=view.block_size,
    )
    if needed > view.total_blocks:
        message = f"the turn may need {needed} blocks; the pool has {view.total_blocks}"
        return Refusal(code="request_too_large", message=message)
    for limit, name in (
        (view.max_session_blocks or None, "max_resident_blocks"),
        (view.max_user_blocks or None, "max_user_resident_blocks"),
        (command.terms.max_blocks, "the quota's max_resident_blocks"),
    ):
        if limit is not None and needed > limit:
            message = f"the turn may need {needed} blocks; {name} is {limit}"
            return Refusal(code="request_too_large", message=message)
    if tokens + command.generate > view.max_model_len:
        message = f"the context has {tokens} tokens; the limit is {view.max_model_len} with a reply"
        return Refusal(code="request_too_large", message=message)
    return None


def _no_place(view: AdmissionView) -> Refusal | None:
    if view.turns < view.max_turns or view.is_first:
        return None  # an owner without turns may queue one, however many others have
    return Refusal(code="queue_full", message=f"{view.turns} turns are running or waiting")
