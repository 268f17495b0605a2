"""The user's selection in `sessiond top`, and its changes by keys. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Action = Literal["reset", "park", "close"]
ACTION_KEYS: Mapping[str, Action] = {"r": "reset", "p": "park", "c": "close"}
SORTS = ("active", "memory", "tokens", "state")
HELP = "↑↓ choose  s sort  / search  i inspect  r reset  p park  c close  q leave"

Session = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopState:
    """The selection. `asked`: an action that waits for `y`. `typing`: the search is being typed."""

    sort: str = SORTS[0]
    chosen: str | None = None
    inspecting: bool = False
    asked: Action | None = None
    wanted: str = ""
    typing: bool = False
    message: str = ""
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """A confirmed action."""

    action: Action
    session: str


def shown(state: TopState, sessions: Sequence[Session]) -> list[Session]:
    """Return the sessions that match the search, in the chosen order."""
    wanted = state.wanted.casefold()
    found = [each for each in sessions if wanted in _text(each)]
    return sorted(found, key=lambda each: _rank(state.sort, each))


def _text(session: Session) -> str:
    return " ".join(str(session.get(key, "")) for key in ("id", "user", "state")).casefold()


def _rank(sort: str, session: Session) -> tuple[object, ...]:
    active = -float(session.get("last_active_at") or 0)
    match sort:
        case "memory":
            return (-device_bytes(session), active)
        case "tokens":
            return (-int(session.get("tokens_total") or 0), active)
        case "state":
            return (str(session.get("state")), active)
        case _:
            return (active,)


def device_bytes(session: Session) -> int:
    """Return a session's KV bytes on the device."""
    return int((session.get("kv_bytes") or {}).get("device", 0))


def on_key(state: TopState, key: str, sessions: Sequence[Session]) -> tuple[TopState, Order | None]:
    """Apply a key; returns an order if it confirmed an action. `sessions`: the shown list."""
    state = replace(state, message="")
    if state.typing:
        return _typed(state, key), None
    if state.asked is not None:
        order = None
        if key == "y" and state.chosen is not None:
            order = Order(state.asked, state.chosen)
        return replace(state, asked=None), order
    return _command(state, key, sessions), None


def _typed(state: TopState, key: str) -> TopState:
    match key:
        case "enter":
            return replace(state, typing=False)
        case "escape":
            return replace(state, typing=False, wanted="")
        case "backspace":
            return replace(state, wanted=state.wanted[:-1])
        case _ if len(key) == 1 and key.isprintable():
            return replace(state, wanted=state.wanted + key)
    return state


def _command(state: TopState, key: str, sessions: Sequence[Session]) -> TopState:
    changed: dict[str, Any] = {}
    match key:
        case "r" | "p" | "c" if state.chosen is None:
            changed = {"message": "choose a session first, with ↑ and ↓"}
        case "r" | "p" | "c":
            changed = {"asked": ACTION_KEYS[key]}
        case "q" | "interrupt":
            changed = {"leaving": True}
        case "s":
            changed = {"sort": SORTS[(SORTS.index(state.sort) + 1) % len(SORTS)]}
        case "/":
            changed = {"typing": True, "wanted": ""}
        case "up" | "down":
            changed = {"chosen": _moved(state.chosen, key, sessions)}
        case "i" | "enter":
            changed = {"inspecting": not state.inspecting and state.chosen is not None}
        case "escape":
            changed = {"inspecting": False, "chosen": None, "wanted": ""}
    return replace(state, **changed)


def _moved(chosen: str | None, key: str, sessions: Sequence[Session]) -> str | None:
    ids = [str(each.get("id")) for each in sessions]
    if not ids:
        return None
    if chosen not in ids:
        return ids[0]
    at = ids.index(chosen) + (1 if key == "down" else -1)
    return ids[min(max(at, 0), len(ids) - 1)]
