"""Parses the arguments of a chat's `/policy`. Pure; the server validates the policy."""

from collections.abc import Sequence


def read_policy(words: Sequence[str]) -> dict[str, int | float | str]:
    """Parse `last_turns turns=30 fidelity=shifted` to a body of `PUT .../policy`.

    Raises:
        ValueError: an argument is not `name=value`; the message names it.
    """
    name, *pairs = words
    policy: dict[str, int | float | str] = {"type": name}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals or not value:
            raise ValueError(f"an argument must be name=value, as in turns=30 (got {pair})")
        policy[key] = _number(value)
    return policy


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
