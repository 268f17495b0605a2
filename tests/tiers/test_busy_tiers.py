"""M03: an engine that is never idle drops no KV that a lower tier has room for."""

import pytest

from engine.ipc.messages import Terms
from tests.harness.loop import Engine
from tests.tiers.engine_words import PROMPT, again, fill
from tests.tiers.support import LateMover, PromptMover

TURNS, TOKENS, BLOCK = 5, 674, 16


def never_idle(engine: Engine) -> None:
    """A stream that goes on beside everything else."""
    engine.open("stream", salt=b"stream")
    engine.submit("stream", [1] * 8, max_output_tokens=700, stop_ids=[], terms=Terms(priority=2))
    engine.step(2)


def turn(engine: Engine, session: str, ids: list[int]):
    """One turn beside the stream; what it took."""
    mine = engine.submit(session, ids, max_output_tokens=2, stop_ids=[])
    for _ in range(5000):
        engine.loop.step()
        if engine.ending(mine) is not None:
            assert engine.stats().running == 1, "the stream goes on"
            return engine.ending(mine).counts
    raise AssertionError("no end")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("host", [40, 130])
def test_m03_what_a_full_host_tier_loses_the_disk_has(make, late: bool, host: int) -> None:
    mover = LateMover(seed=3) if late else PromptMover()
    engine = make("both", mover, num_blocks=180, host=host, disk=5761, max_num_batched_tokens=512)
    never_idle(engine)
    for number in range(TURNS):
        engine.open(f"s{number}", salt=b"s%d" % number)
        turn(engine, f"s{number}", [number + 2] * TOKENS)
    for _ in range(2):
        for number in range(TURNS):
            counts = turn(engine, f"s{number}", [99])
            assert counts.recomputed_tokens <= BLOCK, (number, counts)
    for tier in engine.loop.memory.kv_transfer.tiers:
        assert len(tier.index) <= tier.index.capacity


def test_m03_without_a_lower_tier_the_oldest_goes(make) -> None:
    engine = make("host", PromptMover(), num_blocks=180, host=60, max_num_batched_tokens=512)
    never_idle(engine)
    for number in range(7):
        engine.open(f"s{number}", salt=b"s%d" % number)
        turn(engine, f"s{number}", [number + 2] * TOKENS)
    assert engine.stats().tiers["host"].blocks <= 60
    assert turn(engine, "s0", [99]).recomputed_tokens > BLOCK


def test_m03_kv_of_a_volatile_session_never_goes_to_the_disk(make) -> None:
    engine = make(
        "both", PromptMover(), num_blocks=180, host=40, disk=500, max_num_batched_tokens=512
    )
    never_idle(engine)
    for number in range(4):
        engine.open(f"s{number}", salt=b"s%d" % number, volatile=True)
        turn(engine, f"s{number}", [number + 2] * TOKENS)
    assert engine.stats().tiers["disk"].blocks == 0


def test_m03_nor_does_a_write_in_idle_time_drop_it(make) -> None:
    """What was parked while others ran lies in the host tier only, and there are few slots left."""
    engine = make("both", PromptMover(), num_blocks=10, host=8, disk=100)
    engine.open("a")
    first = engine.submit("a", PROMPT)
    engine.step_until(lambda: engine.ending(first) is not None)
    ids = [*PROMPT, *engine.kept(first)]
    engine.park("a")
    engine.open("b")
    second = engine.submit("b", [5] * 130, max_output_tokens=1)
    engine.step_until(lambda: engine.ending(second) is not None)
    engine.run()
    fill(engine)
    assert again(engine, ids).recomputed_tokens <= BLOCK
