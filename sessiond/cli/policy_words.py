"""A context policy in the words of a chat's `/policy`. Pure; the server judges what they mean."""

from collections.abc import Sequence


def read_policy(words: Sequence[str]) -> dict[str, int | float | str]:
    """Read `last_turns turns=30 fidelity=shifted` to what `PUT .../policy` takes.

    Raises:
        ValueError: a word is not `name=value`; says which.
    """
    name, *pairs = words
    policy: dict[str, int | float | str] = {"type": name}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals or not value:
            raise ValueError(f"{pair}: allowed is name=value, as in turns=30")
        policy[key] = _number(value)
    return policy


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
