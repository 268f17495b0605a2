"""Fifty real dialogues, played turn by turn, sixteen at a time."""

import asyncio
import itertools
import json
from pathlib import Path

import pytest

from benchmarks.load_client import LoadClient
from tests.e2e.support import BLOCK, assert_all_blocks_come_back, total

FOLDER = Path(__file__).parents[1] / "data" / "dialogues"
EACH = 25
AT_ONCE = 16
MAX_TOKENS = 16

pytestmark = pytest.mark.timeout(1800)  # half a minute on native kernels, long on torch


def dialogues(language):
    lines = [
        json.loads(line)
        for path in sorted(FOLDER.glob(f"*{language}*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return lines[:EACH]


def user_texts(dialogue):
    return [turn["text"] for turn in dialogue["turns"] if turn["role"] == "user"]


async def play(server, dialogue, places):
    async with (
        places,
        LoadClient(server.url, temperature=0, max_output_tokens=MAX_TOKENS) as client,
    ):
        turns = [await client.ask(text) for text in user_texts(dialogue)]
    assert [turn.end.outcome for turn in turns if turn.end.stats is None] == []
    for before, after in itertools.pairwise(turns):
        assert after.end.stats.reused_tokens >= total(before) - BLOCK, dialogue["id"]
    return turns


async def test_fifty_dialogues_end_without_error_and_give_everything_back(server):
    chosen = [*dialogues("en"), *dialogues("zh")]
    assert len(chosen) == 2 * EACH
    places = asyncio.Semaphore(AT_ONCE)
    played = await asyncio.gather(*[play(server, one, places) for one in chosen])
    outcomes = {turn.end.outcome for turns in played for turn in turns}
    assert outcomes <= {"completed", "incomplete"}
    assert sum(len(turns) for turns in played) == sum(len(user_texts(one)) for one in chosen)
    assert_all_blocks_come_back(server)
