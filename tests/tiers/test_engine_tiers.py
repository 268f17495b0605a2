"""Engines with tiers: KV that left the device comes back, and counts as what it is."""

from pathlib import Path

import pytest

from engine.ipc.messages import Edit, TurnDone, TurnIncomplete
from engine.ipc.queries import GetPageKeys, GetStored
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import KV_BYTES_PER_BLOCK
from tests.tiers.engine_words import PROMPT, QUIET, again, fill, reply, used
from tests.tiers.support import LateMover, PromptMover


def test_a_parked_session_comes_back_without_being_computed(make, tier: str) -> None:
    engine = make(tier)
    ids = used(engine)
    engine.park("a")
    engine.run()
    assert engine.stats().active_blocks == 0
    counts = again(engine, [], session=fill(engine))
    assert counts.reused_tokens == 0
    counts = again(engine, ids)
    assert (counts.restored_tokens, counts.restored_from) == (96, tier)
    assert counts.reused_tokens == 0
    assert counts.restored_tokens + counts.recomputed_tokens + counts.new_tokens == len(ids) + 1
    assert engine.stats().restored_tokens_total == 96


def test_what_the_device_still_has_is_taken_from_there(make, tier: str) -> None:
    engine = make(tier)
    ids = used(engine)
    engine.park("a")
    engine.run()
    counts = again(engine, ids)
    assert (counts.reused_tokens, counts.restored_tokens, counts.restored_from) == (96, 0, "none")


def test_idle_time_writes_everything_through_so_that_giving_way_costs_nothing(
    make, tier: str
) -> None:
    engine = make(tier)
    ids = used(engine)
    view = engine.view("a")
    assert (view.host_blocks, view.disk_blocks) == ((6, 0) if tier == "host" else (0, 6))
    fill(engine)
    counts = again(engine, ids)
    assert counts.restored_tokens == 96
    assert engine.stats().evictions_total["swap"] == 1


def test_under_pressure_what_gives_way_is_written_first(make, tier: str) -> None:
    mover = PromptMover()
    engine = make(tier, mover, num_blocks=10)
    engine.open("a")
    mover.hold = True
    turn = engine.submit("a", PROMPT)
    engine.step_until(lambda: engine.ending(turn) is not None)
    ids = [*PROMPT, *engine.kept(turn)]
    engine.open("b")
    second = engine.submit("b", [5] * 100)
    engine.step(3)
    assert engine.started(second) is None, "its blocks are being written"
    assert not engine.audit().violations
    mover.hold = False
    engine.run()
    assert isinstance(engine.ending(second), TurnDone | TurnIncomplete)
    counts = again(engine, ids)
    assert counts.restored_tokens > 0
    assert counts.restored_tokens + counts.reused_tokens == 96


def test_both_tiers_hold_it_and_the_faster_one_serves(make) -> None:
    engine = make("both")
    ids = used(engine)
    view = engine.view("a")
    assert (view.host_blocks, view.disk_blocks) == (6, 6)
    fill(engine)
    assert again(engine, ids).restored_from == "host"


def test_what_only_the_host_has_sinks_to_the_disk_in_idle_time(make) -> None:
    mover = PromptMover()
    engine = make("both", mover, num_blocks=10)
    engine.open("a")
    engine.open("b")
    first = engine.submit("a", PROMPT)
    second = engine.submit("b", [5] * 100)
    engine.step_until(lambda: engine.ending(first) and engine.ending(second))
    stats = engine.stats()
    assert stats.tiers["disk"].blocks < stats.tiers["host"].blocks
    engine.run()
    stats = engine.stats()
    assert stats.tiers["disk"].blocks == stats.tiers["host"].blocks > 6


def test_the_slowest_tier_that_was_needed_is_named(make) -> None:
    engine = make("both", host=4, num_blocks=16)
    ids = used(engine)
    fill(engine)
    counts = again(engine, ids)
    assert (counts.restored_tokens, counts.restored_from) == (96, "disk")


def test_a_turn_waits_for_its_kv_while_others_run(make, tier: str) -> None:
    mover = PromptMover()
    engine = make(tier, mover)
    ids = used(engine)
    fill(engine)
    mover.hold = True
    waiting = engine.submit("a", [7])
    engine.open("b")
    other = engine.submit("b", [1, 2, 3])
    engine.step_until(lambda: engine.ending(other) is not None)
    assert engine.started(waiting) is None
    assert not engine.audit().violations
    mover.hold = False
    engine.run()
    expected = reply(engine, [*ids, 7])
    assert engine.kept(waiting)[: len(expected)] == expected
    assert engine.ending(waiting).counts.restored_tokens == 96


def test_a_prefix_that_two_turns_wait_for_is_read_once(make, tier: str) -> None:
    engine = make(tier)
    ids = used(engine)
    engine.fork("b", "a", len(ids))
    engine.release("a")
    engine.release("b")
    fill(engine)
    before = engine.stats().tiers[tier].fetched_bytes_total
    first, second = engine.submit("a", [7]), engine.submit("b", [8])
    engine.run()
    for turn, token in ((first, 7), (second, 8)):
        expected = reply(engine, [*ids, token])
        assert engine.kept(turn)[: len(expected)] == expected
    fetched = engine.stats().tiers[tier].fetched_bytes_total - before
    assert fetched == 6 * KV_BYTES_PER_BLOCK
    assert engine.ending(second).counts.reused_tokens == 96


@pytest.mark.parametrize("how", ["cancel", "close", "set", "fork over", "truncate", "release"])
def test_whatever_becomes_of_a_turn_that_waits_for_its_kv_nothing_leaks(
    make, tier: str, how: str
) -> None:
    mover = PromptMover()
    engine = make(tier, mover)
    ids = used(engine)
    engine.open("other", [1, 2, 3])
    fill(engine)
    mover.hold = True
    turn = engine.submit("a", [7])
    engine.step(3)
    assert engine.stats().active_blocks == 6
    match how:
        case "cancel":
            engine.cancel(turn, keep=False)
        case "close":
            engine.close("a")
        case "set":
            engine.open("a", [9, 9])
        case "fork over":
            engine.fork("a", "other", 2)
        case "truncate":
            engine.truncate("a", 50)
        case "release":
            engine.release("a")
    assert not engine.audit().violations
    mover.hold = False
    engine.run()
    if how == "release":
        assert isinstance(engine.ending(turn), TurnDone | TurnIncomplete), "it needs its KV"
        return
    assert engine.ending(turn).kept_ids == []
    assert engine.stats().active_blocks == 0
    if how == "cancel":
        assert again(engine, ids).reused_tokens == 96, "it was brought to the device"


def test_a_preempted_turn_comes_back_from_a_tier(make, tier: str) -> None:
    engine = make(tier, num_blocks=12)
    engine.open("a")
    engine.open("b")
    first = engine.submit("a", PROMPT[:64], max_output_tokens=60, stop_ids=[])
    second = engine.submit("b", [5] * 64, max_output_tokens=60, stop_ids=[])
    engine.run()
    for turn, ids in ((first, PROMPT[:64]), (second, [5] * 64)):
        expected = expected_reply(ids, draw=engine.draw, max_output_tokens=60, stop_ids=())
        assert engine.kept(turn)[:60] == expected
    stats = engine.stats()
    assert stats.preemptions_total > 0
    assert stats.restored_tokens_total > 0
    assert engine.model.computed_tokens < 2 * 124 + 40, "what was computed stayed"


def test_kv_of_volatile_sessions_is_never_written_to_disk(make) -> None:
    engine = make("both")
    engine.open("a", volatile=True)
    engine.turn("a", PROMPT)
    engine.fork("b", "a", 100)
    engine.turn("b", [1] * 40)
    engine.park("a")
    engine.park("b")
    engine.run()
    assert engine.stats().tiers["disk"].blocks == 0
    assert engine.stats().tiers["host"].blocks >= 6


def test_a_fork_may_be_volatile_when_its_parent_is_not(make) -> None:
    """Such as a summary is written on: the parent's KV goes to disk, before and after it."""
    engine = make("both")
    ids = used(engine)
    engine.fork("b", "a", 100, volatile=True)
    engine.turn("b", [1] * 60)
    engine.park("b")
    engine.run()
    assert engine.stats().tiers["disk"].blocks == len(ids) // 16
    assert engine.stats().tiers["host"].blocks > len(ids) // 16
    again(engine, ids)
    engine.turn("a", [2] * 60)
    assert engine.stats().tiers["disk"].blocks > len(ids) // 16
    assert engine.view("a").disk_blocks == engine.stats().tiers["disk"].blocks


def test_a_session_that_was_forgotten_comes_back_for_its_kv(make, tier: str) -> None:
    engine = make(tier)
    ids = used(engine)
    engine.close("a")
    fill(engine)
    engine.open("a", ids)
    assert again(engine, ids).restored_tokens == 96


def test_a_bad_block_is_computed_again_and_never_used(make, tmp_path: Path) -> None:
    engine = make("disk")
    ids = used(engine)
    fill(engine)
    path = next(tmp_path.iterdir())
    with path.open("r+b") as file:
        file.seek(4096 + 2 * 4096 + 50)  # in the third block's bytes
        file.write(b"?")
    counts = again(engine, ids)
    assert counts.restored_tokens == 32, "what comes before it is good"
    stats = engine.stats().tiers["disk"]
    assert stats.refused_blocks_total == 1
    assert engine.view("a").disk_blocks == 7, "what was computed again is written again"


def test_a_failed_step_takes_what_it_read_out_of_the_tiers(make, tier: str) -> None:
    engine = make(tier)
    ids = used(engine)
    engine.model.fail_at.add(engine.model.steps + 1)
    engine.turn("a", [7])
    view = engine.view("a")
    assert (view.host_blocks, view.disk_blocks) == (0, 0)
    counts = again(engine, ids)
    assert counts.restored_tokens + counts.reused_tokens == 0


def test_shifted_kv_comes_back_with_its_edits(make, make_engine, tier: str) -> None:
    engine, resident = make(tier), make_engine(**QUIET)
    replies = []
    for one in (engine, resident):
        ids = used(one)
        one.edit("a", Edit(at=len(ids), dropped=((20, 60),)))
        second = one.turn("a", [1] * 20)
        if one is engine:
            fill(one)
        third = one.turn("a", [7])
        replies.append((one.kept(second), one.kept(third)))
        counts = one.ending(third).counts
        assert (counts.restored_tokens > 60) == (one is engine)
        assert not counts.rebuilt_exact
    assert replies[0] == replies[1]


def test_what_was_rewound_is_in_no_tier_but_what_a_fork_has_is(make, tier: str) -> None:
    """T13 (TensorRT-LLM#13080): dead blocks neither stay nor are they written."""
    engine = make(tier)
    used(engine)
    engine.fork("b", "a", 64)
    assert engine.stats().tiers[tier].blocks == 6
    engine.truncate("a", 40)
    engine.run()
    assert engine.stats().tiers[tier].blocks == 4, "b has 64 ids of it"
    engine.truncate("b", 20)
    engine.run()
    assert engine.stats().tiers[tier].blocks == 2
    engine.submit("a", PROMPT)
    engine.step(2)
    engine.truncate("a", 32)
    engine.run()
    assert engine.stats().tiers[tier].blocks == 2


def test_a_turn_that_was_swapped_out_and_cancelled_leaves_nothing_behind(make, tier: str) -> None:
    """T09 (sglang#18701): the copies of an aborted turn go with it."""
    engine = make(tier, num_blocks=12)
    engine.open("a")
    engine.open("b")
    first = engine.submit("a", PROMPT[:64], max_output_tokens=60, stop_ids=[])
    second = engine.submit("b", [5] * 64, max_output_tokens=60, stop_ids=[])
    engine.step_until(lambda: engine.stats().preemptions_total > 0)
    engine.step(5)
    assert engine.stats().tiers[tier].blocks > 0
    engine.cancel(second, keep=False)
    engine.cancel(first, keep=False)
    engine.run()
    assert engine.stats().tiers[tier].blocks == 0
    assert engine.stats().active_blocks == 0


@pytest.mark.parametrize("seed", range(6))
def test_moves_that_take_long_never_spoil_what_runs_beside_them(make, tier: str, seed: int) -> None:
    """T27 (vllm#45704), T28 (TensorRT-LLM#15546): bytes and tables are read late, at random."""
    engine = make(tier, LateMover(seed), num_blocks=14, max_num_seqs=3)
    ids: dict[str, list[int]] = {name: [] for name in "abcd"}
    for name in ids:
        engine.open(name)
    for number in range(4):
        prompts = {name: [ord(name), number] * 8 for name in ids}
        turns = {name: engine.submit(name, prompts[name]) for name in ids}
        engine.run()
        for name, turn in turns.items():
            ids[name] += prompts[name]
            expected = reply(engine, ids[name])
            assert engine.kept(turn)[: len(expected)] == expected
            ids[name] += engine.kept(turn)
            engine.park(name)
    assert engine.stats().restored_tokens_total > 0


def test_m04_a_session_is_parked_as_long_as_its_view_tells_blocks(make, tier: str) -> None:
    engine = make(tier)
    ids = used(engine)
    engine.park("a")
    engine.run()
    keys = engine.loop.answer(GetPageKeys(salt=b"", ids=ids)).keys
    assert len(keys) == 6
    stored = GetStored(chains=[keys, keys[:2], [], keys[1:]])
    found = [counts[tier] for counts in engine.loop.answer(stored).blocks]
    assert found == [6, 2, 0, 5], "the engine needs no context for it"
    view, stats = engine.view("a"), engine.stats()
    assert (view.blocks, view.host_blocks + view.disk_blocks) == (0, 6)
    assert (stats.idle, stats.parked) == (0, 1)
    engine.loop.memory.kv_transfer.tiers.erase(keys[:1])
    view, stats = engine.view("a"), engine.stats()
    assert (view.host_blocks, view.disk_blocks) == (0, 0), "useless without the first page"
    assert (stats.idle, stats.parked) == (0, 0)
    assert not engine.audit().violations
