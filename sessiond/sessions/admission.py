"""Whether a turn can ever be served, and how long its reply may get. Pure."""

from dataclasses import dataclass

from engine.messages import EngineInfo
from sessiond.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a turn needs and what there is, in tokens.

    `before`: all tokens before the reply. `close`: what is owed after it, which needs room in the
    pool once more is said.
    """

    before: int
    close: int
    max_model_len: int
    pool: int


def room_of(info: EngineInfo, *, before: int, close: int) -> Room:
    """The room of a turn on this engine."""
    pool = info.total_blocks * info.block_size
    return Room(before=before, close=close, max_model_len=info.max_model_len, pool=pool)


def admit_reply(room: Room, *, wanted: int | None, default: int) -> int:
    """How many tokens the reply may have; at most what was asked for.

    Asking for more than the model's length leaves the end to the engine, which tells
    `context_length`; asking for more than the pool could hold is refused.

    Raises:
        RequestError: not even one token fits, or the explicit maximum does not.
    """
    _need_model_len(room, reply=1)
    _need_pool(room, reply=1)
    most = room.pool - room.before - room.close
    if wanted is None:
        return min(default, most)
    _need_pool(room, reply=min(wanted, room.max_model_len - room.before))
    return min(wanted, most)


def admit_prefill(room: Room) -> None:
    """Check a turn that generates nothing.

    Raises:
        RequestError: it does not fit.
    """
    _need_model_len(room, reply=0)
    _need_pool(room, reply=0)


def _need_model_len(room: Room, *, reply: int) -> None:
    if room.before + reply > room.max_model_len:
        raise RequestError(
            "context_length_exceeded",
            f"the conversation with this input has {room.before} tokens; the model takes "
            f"{room.max_model_len} with the reply, and no trimming policy is in force",
            param="input",
        )


def _need_pool(room: Room, *, reply: int) -> None:
    need = room.before + reply + room.close
    if need > room.pool:
        raise RequestError(
            "request_too_large",
            f"the turn may need {need} tokens of KV; the whole pool has {room.pool}",
            param="input" if reply <= 1 else "max_output_tokens",
        )
