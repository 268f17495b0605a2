"""Many preemptions and drafts at once: every turn has the tokens of an engine without either."""

import random

import pytest

from engine.ipc.messages import Sampling, Terms, TurnIncomplete
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import CLOSE
from tests.laws.backend import FakeBackend
from tests.laws.drafting import OracleDrafts
from tests.soak import SOAK

BLOCK = 4
RUNS = 1000 if SOAK else 60
GREEDY = Sampling(temperature=0)
DRAWN = Sampling(temperature=0.9, seed=5, repetition_penalty=1.3, frequency_penalty=0.2)


def mix_of(chance: random.Random, pool: int) -> list[tuple[int, int, int]]:
    """Prompt, reply and priority of some turns, each of which fits the pool alone."""
    mix = []
    for _ in range(chance.randint(3, 8)):
        tokens = chance.randint(2, pool) * BLOCK - len(CLOSE)
        prompt = chance.randint(1, tokens - 1)
        mix.append((prompt, tokens - prompt, chance.randrange(3)))
    return mix


@pytest.mark.soak
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("pool", [4, 5, 6, 9])
def test_drafts_and_preemptions_change_no_token(make_engine, pool: int, sampling: Sampling) -> None:
    preempted = accepted = 0
    for seed in range(RUNS):
        chance = random.Random(f"{pool} {seed}")
        engine = make_engine(
            num_blocks=pool,
            block_size=BLOCK,
            max_num_seqs=chance.randint(2, 6),
            max_preemptions=chance.randint(1, 4),
            max_num_batched_tokens=16,
            num_speculative_tokens=4,
            idle_prefill=False,
        )
        engine.draft_with(OracleDrafts(FakeBackend(), seed))
        turns = {}
        for number, (prompt, reply, priority) in enumerate(mix_of(chance, pool)):
            name = f"s{number}"
            engine.open(name, salt=chance.choice((b"a", b"b")))
            turn = engine.submit(
                name,
                [number + 1] * prompt,
                max_output_tokens=reply,
                stop_ids=[],
                sampling=sampling,
                terms=Terms(priority=priority),
            )
            turns[turn] = ([number + 1] * prompt, reply)
            for _ in range(chance.randint(0, 3)):
                engine.loop.step()
        engine.run()
        for turn, (prompt, reply) in turns.items():
            ending = engine.ending(turn)
            assert isinstance(ending, TurnIncomplete)
            whole = expected_reply(
                prompt, draw=engine.draw, max_output_tokens=reply, stop_ids=(), sampling=sampling
            )
            kept = ending.kept_ids[: -len(CLOSE)]
            assert kept == whole[: len(kept)]
            assert len(kept) == reply or ending.reason == "memory_pressure"
        stats = engine.stats()
        preempted += stats.preemptions_total + stats.pauses_total
        accepted += stats.accepted_drafts_total
        engine.check()
    assert preempted > RUNS
    assert accepted > RUNS
