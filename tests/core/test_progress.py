"""However small the pool and whatever the mix: every turn ends, and no work is done in vain."""

import random
from itertools import product
from typing import NamedTuple

import pytest

from engine.ipc.messages import Terms, TurnFailed, TurnIncomplete
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import CLOSE, Engine
from tests.soak import SOAK
from tests.tiers.support import LateMover, tiers_of

BLOCK = 2
OWED = len(CLOSE)
MIXES = 40 if SOAK else 2
LOW, NORMAL, HIGH = range(3)


class Wanted(NamedTuple):
    """A turn: tokens before its reply and in it, its session's priority and owner."""

    prompt: int
    reply: int
    priority: int = NORMAL
    owner: bytes = b""

    def blocks(self) -> int:
        return -(-(self.prompt + self.reply + OWED) // BLOCK)


def of_size(blocks: int, share: float, priority: int, owner: bytes = b"") -> Wanted:
    """A turn whose worst case is so many blocks, with that share of it in its prompt."""
    tokens = max(2, blocks * BLOCK - OWED)
    prompt = min(tokens - 1, max(1, round(tokens * share)))
    return Wanted(prompt, tokens - prompt, priority, owner)


def begin(engine: Engine, mix: list[Wanted], apart: int = 0) -> list[str]:
    """Submit all, `apart` steps one after another."""
    turns = []
    for number, wanted in enumerate(mix):
        engine.open(f"s{number}", salt=wanted.owner)
        turns.append(
            engine.submit(
                f"s{number}",
                [number + 1] * wanted.prompt,
                max_output_tokens=wanted.reply,
                stop_ids=[],
                terms=Terms(priority=wanted.priority),
            )
        )
        for _ in range(apart):
            engine.loop.step()
    return turns


def judge(engine: Engine, mix: list[Wanted], turns: list[str], preempted: int = 0) -> None:
    """Each has its whole reply, or, where another has a higher priority, the beginning of it.

    `preempted`: preemptions that the engine had counted before.
    """
    for number, (turn, wanted) in enumerate(zip(turns, mix, strict=True)):
        ending = engine.ending(turn)
        assert isinstance(ending, TurnIncomplete), (mix, ending)
        reply = ending.kept_ids[:-OWED]
        whole = expected_reply(
            [number + 1] * wanted.prompt,
            draw=engine.draw,
            max_output_tokens=wanted.reply,
            stop_ids=(),
        )
        assert reply == whole[: len(reply)], mix
        if ending.reason == "max_output_tokens":
            assert len(reply) == wanted.reply
        else:
            assert ending.reason == "memory_pressure"
            assert wanted.priority < max(one.priority for one in mix), "cut for an equal"
    preempted = engine.stats().preemptions_total - preempted
    assert preempted <= (engine.config.max_preemptions + 1) * len(mix)
    engine.check()


def play(engine: Engine, mix: list[Wanted], apart: int = 0) -> None:
    """Run all to their end within as many steps as can be needed."""
    # Each turn may be computed once more for each time that it gives way, and gives way once more
    # than it may where it runs alone; a step computes a token at least.
    bound = sum((engine.config.max_preemptions + 2) * (one.prompt + one.reply) for one in mix)
    preempted = engine.stats().preemptions_total
    turns = begin(engine, mix, apart)
    advance(engine, bound)
    judge(engine, mix, turns, preempted)


def advance(engine: Engine, bound: int) -> None:
    """Step until nothing is left; a step without any work is followed by one that has some."""
    idle = 0
    for _ in range(bound):
        steps = engine.model.steps
        if not engine.loop.has_work:
            return
        engine.loop.step()
        idle = 0 if engine.model.steps > steps else idle + 1
        assert idle <= 1, "it stands still"
    assert not engine.loop.has_work, f"still busy after {bound} steps"


def clear(engine: Engine) -> None:
    for session in list(engine.loop.memory.contexts):
        engine.close(session)
    engine.check()
    assert engine.stats().active_blocks == 0
    engine.events.clear()


def small(make_engine, pool: int, **settings: object) -> Engine:
    quiet = {"idle_prefill": False, "num_speculative_tokens": 0, "max_num_batched_tokens": 12}
    return make_engine(num_blocks=pool, block_size=BLOCK, **{**quiet, **settings})


@pytest.mark.parametrize("priorities", [(1, 1, 1), (0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("pool", [4, 5, 6])
def test_every_mix_of_three_sizes_ends(make_engine, pool: int, priorities: tuple[int, ...]) -> None:
    engine = small(make_engine, pool, max_num_seqs=3, max_preemptions=1)
    shares = (0.2, 0.5, 0.8)
    for sizes in product(range(2, pool + 1), repeat=3):
        play(engine, [of_size(*one) for one in zip(sizes, shares, priorities, strict=True)])
        clear(engine)


@pytest.mark.soak
@pytest.mark.parametrize("pool", range(4, 65))
def test_random_mixes_end_on_every_pool(make_engine, pool: int) -> None:
    for seed in range(MIXES):
        chance = random.Random(1000 * pool + seed)
        settings = {
            "max_num_seqs": chance.randint(1, 8),
            "max_preemptions": chance.randint(0, 3),
            "enable_prefix_caching": chance.random() < 0.7,
            "kv_low_watermark": chance.choice((0.5, 0.95)),
            "num_speculative_tokens": chance.choice((0, 4)),
        }
        engine = small(make_engine, pool, **settings)
        mix = [
            of_size(
                chance.randint(2, pool),
                chance.random(),
                chance.choice((LOW, NORMAL, NORMAL, HIGH)),
                chance.choice((b"a", b"b", b"c")),
            )
            for _ in range(chance.randint(2, 10))
        ]
        assert max(one.blocks() for one in mix) <= pool
        play(engine, mix, apart=chance.randint(0, 3))
        clear(engine)


@pytest.mark.soak
@pytest.mark.parametrize("pool", [*range(4, 12), *range(12, 65, 6)])
def test_random_mixes_end_while_their_kv_moves(make_engine, pool: int, tmp_path) -> None:
    for seed in range(MIXES):
        chance = random.Random(1000 * pool + seed)
        mover = LateMover(seed=seed)
        tiers = tiers_of(mover, 8 * BLOCK, host=6, disk=40, folder=tmp_path / str(seed))
        engine = small(make_engine, pool, max_num_seqs=4, max_preemptions=2, tiers=tiers)
        mix = [
            of_size(chance.randint(2, pool), chance.random(), chance.choice((LOW, NORMAL, HIGH)))
            for _ in range(chance.randint(2, 8))
        ]
        turns = begin(engine, mix)
        engine.run()
        judge(engine, mix, turns)


@pytest.mark.soak
@pytest.mark.parametrize("pool", [*range(4, 12), *range(12, 65, 6)])
def test_random_mixes_end_beside_turns_in_the_background(make_engine, pool: int) -> None:
    """The foreground ends as it does alone; a background turn has its whole reply, or fails."""
    for seed in range(MIXES):
        chance = random.Random(1000 * pool + seed)
        engine = small(
            make_engine,
            pool,
            max_num_seqs=chance.randint(1, 4),
            max_preemptions=chance.randint(0, 2),
        )
        behind = []
        for number in range(chance.randint(1, 3)):
            engine.open(f"b{number}", salt=chance.choice((b"a", b"b")))
            wanted = of_size(chance.randint(2, pool), chance.random(), NORMAL)
            behind.append(
                engine.submit(
                    f"b{number}",
                    [200 + number] * wanted.prompt,
                    max_output_tokens=wanted.reply,
                    stop_ids=[],
                    background=True,
                )
            )
            engine.loop.step()
        mix = [
            of_size(
                chance.randint(2, pool),
                chance.random(),
                chance.choice((LOW, NORMAL, HIGH)),
                chance.choice((b"a", b"b")),
            )
            for _ in range(chance.randint(1, 6))
        ]
        turns = begin(engine, mix, apart=chance.randint(0, 3))
        engine.run()
        judge(engine, mix, turns, preempted=engine.stats().preemptions_total)
        for turn in behind:
            ending = engine.ending(turn)
            assert isinstance(ending, TurnIncomplete | TurnFailed)
            assert (
                ending.reason == "max_output_tokens"
                if isinstance(ending, TurnIncomplete)
                else (ending.code == "queue_full")
            )
