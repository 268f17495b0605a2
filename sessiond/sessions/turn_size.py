"""Admission of a turn and the bound on its reply length. Pure."""

from dataclasses import dataclass

from engine.ipc.messages import EngineInfo
from sessiond.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Tokens that a turn needs and tokens available.

    `before`: all tokens before the reply. `close`: tokens that end the reply, which need pool space
    in the next turn. `trims`: a policy has dropped all it may. `cap`: limit of the policy or quota
    named `cap_name`; None: no limit.
    """

    before: int
    close: int
    max_model_len: int
    pool: int
    trims: bool = False
    cap: int | None = None
    cap_name: str = ""

    @property
    def most(self) -> int:
        """Maximum tokens of the context at the end of a turn."""
        least = min(self.max_model_len, self.pool)
        return least if self.cap is None else min(least, self.cap)


def room_of(info: EngineInfo, *, before: int, close: int) -> Room:
    """The room of a turn on this engine."""
    pool = info.total_blocks * info.block_size
    return Room(before=before, close=close, max_model_len=info.max_model_len, pool=pool)


def reserve_reply(room: Room, *, wanted: int | None, default: int) -> int:
    """Tokens that a policy must leave for the reply; `room.before` can't be dropped.

    The whole requested length is reserved if it can ever fit. Otherwise the reply ends where the
    room ends, and the default is reserved, at most a quarter of the room, so that a long default
    does not evict the conversation.
    """
    left = room.most - room.before - room.close
    if wanted is not None and wanted <= left:
        return wanted
    return max(1, min(default, room.most // 4, left))


def admit_reply(room: Room, *, wanted: int | None, default: int) -> int:
    """Maximum tokens of the reply, at most the requested number.

    A request beyond the model's length ends in the engine with `context_length`; a request beyond
    the pool's capacity is refused.

    Raises:
        RequestError: not even one token fits, or the explicit maximum does not.
    """
    _need_model_len(room, reply=1)
    _need_cap(room, reply=1)
    _need_pool(room, reply=1)
    most = room.pool if room.cap is None else min(room.pool, room.cap)
    most -= room.before + room.close
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
    _need_cap(room, reply=0)
    _need_pool(room, reply=0)


def _need_model_len(room: Room, *, reply: int) -> None:
    if room.before + reply > room.max_model_len:
        why = "with the rest trimmed" if room.trims else "no trimming policy is in force"
        raise RequestError(
            "context_length_exceeded",
            f"the context has {room.before} tokens ({why}); the model's limit is "
            f"{room.max_model_len} with the reply",
            param="input",
        )


def _need_cap(room: Room, *, reply: int) -> None:
    if room.cap is not None and room.before + reply + room.close > room.cap:
        raise RequestError(
            "context_length_exceeded",
            f"the context has {room.before} tokens and needs {reply + room.close} for the reply; "
            f"the limit of {room.cap_name} is {room.cap}",
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
