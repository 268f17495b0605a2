"""Requests in few words."""

from collections.abc import Sequence

from engine.simulation.trace import Request


def request(at_s: float, session: str, blocks: Sequence[int], new_tokens: int = 100) -> Request:
    return Request(at_s=at_s, session=session, blocks=blocks, known_blocks=0, new_tokens=new_tokens)


def requests(*prompts: str) -> list[Request]:
    """`a12` is session a asking with blocks 1 and 2; one request a second."""
    return [
        request(at_s, prompt[0], [int(digit) for digit in prompt[1:]])
        for at_s, prompt in enumerate(prompts)
    ]
