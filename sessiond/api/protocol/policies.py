"""Decodes context policies and the other settings of a session.

`context_management` is OpenAI's field; its type `compaction` is the summarising policy, the other
types are this server's own. The policies themselves validate their parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sessiond.api.protocol import fields
from sessiond.api.protocol.resources import Json
from sessiond.domain import UNSET, PolicyChoice, Unset

MAX_TTL_S = 30 * 24 * 3600
MAX_PARAMETERS = 16
MAX_PARAMETER_NAME = 64
MAX_PARAMETER = 1024
FIDELITIES: tuple[Literal["exact", "shifted"], ...] = ("exact", "shifted")
OVERSIZES: tuple[Literal["refuse", "keep_end"], ...] = ("refuse", "keep_end")
UNDER_PRESSURE: tuple[Literal["keep", "trim_history"], ...] = ("keep", "trim_history")
_RETENTIONS: tuple[Literal["release", "park", "hold"], ...] = ("release", "park", "hold")
_PRIORITIES: tuple[Literal["low", "normal", "high"], ...] = ("low", "normal", "high")
_OF_ALL = frozenset({"type", "fidelity", "oversize", "under_pressure"})  # whatever the policy
UPDATE_KEYS = frozenset({"context_management", "retention", "ttl_s", "priority"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUpdate:
    """Changes to a session. `policy` None removes the session's own policy."""

    policy: PolicyChoice | Unset | None = UNSET
    retention: Literal["release", "park", "hold"] | None = None
    ttl_s: float | None = None
    priority: Literal["low", "normal", "high"] | None = None


def decode_context_management(value: object) -> PolicyChoice | None:
    """Read the list of at most one policy; an empty list and null request none.

    Raises:
        RequestError: names the invalid part.
    """
    name = "context_management"
    listed = [] if value is None else fields.sequence(name, value)
    if len(listed) > 1:
        fields.refuse(name, f"{len(listed)} policies", "an array of at most one policy")
    return decode_policy(listed[0], f"{name}[0]") if listed else None


def decode_policy(value: object, name: str = "") -> PolicyChoice:
    """Read one policy: its type, fidelity, `oversize`, `under_pressure` and parameters.

    `name` is the field that contains the policy; "" if it is the whole body.

    Raises:
        RequestError: names the invalid part.
    """
    pairs, where = fields.mapping(name, value), f"{name}." if name else ""
    if len(pairs) > MAX_PARAMETERS:
        allowed = f"an object of at most {MAX_PARAMETERS} fields"
        fields.refuse(name or "policy", f"{len(pairs)} fields", allowed)
    parameters: dict[str, int | float | str] = {}
    for key, one in pairs.items():
        if key in _OF_ALL or one is None:
            continue
        if isinstance(one, bool) or not isinstance(one, int | float | str):
            fields.refuse(f"{where}{key[:64]}", one, "a number or a string")
        if len(key) > MAX_PARAMETER_NAME or (isinstance(one, str) and len(one) > MAX_PARAMETER):
            allowed = f"a number or a string of up to {MAX_PARAMETER} characters, "
            allowed += f"with a name of up to {MAX_PARAMETER_NAME} characters"
            fields.refuse(f"{where}{key[:64]}", one, allowed)
        # JSON does not distinguish 1.0 from 1
        parameters[key] = int(one) if isinstance(one, float) and one.is_integer() else one
    return PolicyChoice(
        type=fields.text(f"{where}type", pairs.get("type"), longest=64),
        parameters=parameters,
        fidelity=_one_of("fidelity", pairs, where, FIDELITIES),
        oversize=_one_of("oversize", pairs, where, OVERSIZES),
        under_pressure=_one_of("under_pressure", pairs, where, UNDER_PRESSURE),
    )


def _one_of(
    key: str, pairs: Mapping[str, object], where: str, choices: tuple[fields.Choice, ...]
) -> fields.Choice:
    """One of the words; absent or null is the first."""
    value = pairs.get(key)
    return choices[0] if value is None else fields.one_of(f"{where}{key}", value, choices)


def decode_session_update(pairs: dict[str, object]) -> SessionUpdate:
    """Read the changes that `session.update` requests.

    Raises:
        RequestError: names the invalid field, or states that no change is requested.
    """
    if not UPDATE_KEYS & pairs.keys():
        allowed = f"a change of {fields.either(sorted(UPDATE_KEYS))}"
        fields.refuse("session.update", "no change", allowed)
    retention, ttl_s, priority = (pairs.get(key) for key in ("retention", "ttl_s", "priority"))
    return SessionUpdate(
        policy=decode_context_management(pairs["context_management"])
        if "context_management" in pairs
        else UNSET,
        retention=None if retention is None else fields.one_of("retention", retention, _RETENTIONS),
        ttl_s=None if ttl_s is None else fields.number("ttl_s", ttl_s, 0.0, 0.0, MAX_TTL_S),
        priority=None if priority is None else fields.one_of("priority", priority, _PRIORITIES),
    )


def policy_object(choice: PolicyChoice) -> Json:
    """Build a policy object that `decode_policy` can read."""
    packed: Json = {"type": choice.type, **choice.parameters, "fidelity": choice.fidelity}
    if choice.oversize != OVERSIZES[0]:
        packed["oversize"] = choice.oversize
    if choice.under_pressure != UNDER_PRESSURE[0]:
        packed["under_pressure"] = choice.under_pressure
    return packed
