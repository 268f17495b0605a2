"""Texts that the benchmarks send: made up, deterministic."""

_SENTENCES = (
    "The ferry left the harbour before the fog had lifted.",
    "Nobody in the village could say who had planted the walnut trees.",
    "Her notebook listed every bird that had crossed the valley since March.",
    "A second bell rang, further off, and the market fell quiet.",
    "He repaired clocks in winter and roofs when the days grew longer.",
    "The map was wrong about the river, and the river did not mind.",
    "Three letters arrived on the same day, each in a different hand.",
    "They counted the steps to the lighthouse and lost the number twice.",
)
_TOKENS_PER_SENTENCE = 13.2  # measured with the default model's vocabulary; lengths are rough

QUESTIONS = (
    "Who repaired the clocks, and what did he do when the days grew longer?",
    "What did her notebook list, and since when?",
    "How many letters arrived, and what was odd about them?",
    "What was wrong with the map?",
    "What happened when the second bell rang?",
    "When did the ferry leave the harbour?",
    "What did nobody in the village know?",
)

LONG_TASK = "Write a very long story about the harbour, the walnut trees and the lighthouse."


def prose(tokens: int) -> str:
    """A text of about so many tokens; every sentence of it is numbered."""
    count = max(1, round(tokens / _TOKENS_PER_SENTENCE / 1.25))
    return " ".join(f"({i}) {_SENTENCES[i % len(_SENTENCES)]}" for i in range(1, count + 1))
