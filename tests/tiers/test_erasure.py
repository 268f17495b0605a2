"""What is to be kept nowhere is in no tier, and no slot has a trace of it."""

from pathlib import Path

import pytest

from engine.ids import SessionId
from engine.ipc.messages import CloseContext, Edit
from tests.harness.loop import KV_BYTES_PER_BLOCK, Engine
from tests.tiers.engine_words import PROMPT, QUIET, again, fill, used
from tests.tiers.support import LateMover, PromptMover, tiers_of


def erase(engine: Engine, session: str) -> None:
    engine.loop.handle(CloseContext(session=SessionId(session), erase=True))


def traces(engine: Engine, folder: Path) -> set[str]:
    """Where anything but zeros lies: on the device, in the host's slots, in the disk's file."""
    places = {"device": any(engine.model.slots), "disk": slots_on_disk(folder).strip(b"\0")}
    for one in engine.loop.memory.kv_transfer.tiers:
        if one.name == "host":
            places["host"] = one.store.slots.any()
    return {place for place, is_there in places.items() if is_there}


def write_through(engine: Engine) -> None:
    """Let idle time pass until something is being written."""
    while not engine.loop.memory.kv_transfer.tiers.in_flight:
        engine.loop.step()
        engine.clock.advance(1.0)


def slots_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes()[4096:] for path in folder.iterdir())


def test_an_erased_session_is_in_no_tier_and_no_slot_has_a_trace_of_it(
    make, make_engine, tmp_path: Path
) -> None:
    engine = make("both")
    ids = used(engine)
    engine.edit("a", Edit(at=len(ids), dropped=((20, 60),)))
    engine.turn("a", [1] * 40)
    assert traces(engine, tmp_path) == {"device", "host", "disk"}
    erase(engine, "a")
    engine.run()
    assert traces(engine, tmp_path) == set()
    assert {tier.blocks for tier in engine.stats().tiers.values()} == {0}
    engine.open("b", ids)
    counts = again(engine, ids, "b")
    assert counts.reused_tokens + counts.restored_tokens == 0
    engine.loop.close()
    later = make_engine(
        tiers=tiers_of(PromptMover(), KV_BYTES_PER_BLOCK, disk=256, folder=tmp_path), **QUIET
    )
    later.open("b", ids)
    assert again(later, ids, "b").restored_tokens > 0, "b's own"


def test_one_that_the_engine_had_forgotten_is_erased_in_the_tiers_too(
    make, tier: str, tmp_path: Path
) -> None:
    engine = make(tier)
    ids = used(engine)
    engine.close("a")
    engine.open("a", ids)
    erase(engine, "a")
    engine.run()
    assert engine.stats().cached_blocks == 0
    assert traces(engine, tmp_path) <= {"device"}, "no one knows of its last block's part"


def test_what_another_session_of_the_user_has_stays_until_it_is_erased_too(
    make, tier: str, tmp_path: Path
) -> None:
    engine = make(tier)
    ids = used(engine)
    engine.fork("b", "a", 64)
    engine.release("b")
    erase(engine, "a")
    engine.run()
    assert engine.stats().tiers[tier].blocks == 4
    assert again(engine, ids[:64], "b").reused_tokens == 64
    erase(engine, "b")
    engine.run()
    assert traces(engine, tmp_path) == set()


def test_a_fork_that_ends_inside_a_block_does_not_bring_its_erased_parent_to_a_tier(
    make, tier: str, tmp_path: Path
) -> None:
    engine = make(tier)
    used(engine)
    engine.fork("b", "a", 70)
    erase(engine, "a")
    engine.park("b")
    engine.run()
    assert engine.stats().tiers[tier].blocks == 4
    erase(engine, "b")
    engine.run()
    assert traces(engine, tmp_path) == set()


def test_equal_text_of_another_user_is_not_touched(make, tier: str) -> None:
    engine = make(tier)
    engine.open("a", salt=b"ann")
    engine.open("b", salt=b"bob")
    engine.turn("a", PROMPT)
    engine.turn("b", PROMPT)
    before = engine.view("b")
    erase(engine, "a")
    engine.run()
    assert engine.view("b") == before
    assert engine.stats().tiers[tier].blocks == 6


@pytest.mark.parametrize("moving", ["idle write", "swap", "fetch"])
def test_what_a_move_has_in_hand_is_erased_when_it_ends(
    make, tier: str, tmp_path: Path, moving: str
) -> None:
    mover = PromptMover()
    engine = make(tier, mover)
    mover.hold = moving != "fetch"
    engine.open("a")
    turn = engine.submit("a", PROMPT)
    engine.step_until(lambda: engine.ending(turn) is not None)
    match moving:
        case "idle write":
            write_through(engine)
        case "swap":
            engine.park("a")
        case "fetch":
            engine.run()
            fill(engine)
            erase(engine, "z")
            mover.hold = True
            engine.submit("a", [7])
            engine.step(3)
    assert engine.loop.memory.kv_transfer.tiers.in_flight
    erase(engine, "a")
    engine.loop.step()
    assert not engine.audit().violations
    assert traces(engine, tmp_path)
    mover.hold = False
    engine.run()
    if moving == "fetch":  # of the filler, which was only closed
        engine.open("z", [3] * (16 * engine.stats().total_blocks - 4))
        erase(engine, "z")
        engine.run()
    left = {"device"} if moving == "swap" else set()  # of its last block's part no one knows
    assert traces(engine, tmp_path) == left
    assert engine.stats().cached_blocks == 0
    engine.check()


def test_what_was_dropped_is_not_found_after_a_restart(make, make_engine, tmp_path: Path) -> None:
    """Not what was rewound, and not what a failed step had read."""
    engine = make("disk")
    used(engine)
    engine.truncate("a", 40)
    engine.open("b", salt=b"bob")
    engine.turn("b", PROMPT)
    engine.model.fail_at.add(engine.model.steps + 1)
    engine.turn("b", [7])
    engine.loop.close()
    later = make_engine(
        tiers=tiers_of(PromptMover(), KV_BYTES_PER_BLOCK, disk=256, folder=tmp_path), **QUIET
    )
    assert later.stats().tiers["disk"].blocks == 2


def test_what_is_dropped_as_the_engine_stops_is_overwritten_too(make, tmp_path: Path) -> None:
    engine = make("disk", LateMover())
    engine.open("a")
    turn = engine.submit("a", PROMPT)
    engine.step_until(lambda: engine.ending(turn) is not None)
    write_through(engine)
    erase(engine, "a")
    engine.loop.close()
    assert not slots_on_disk(tmp_path).strip(b"\0")
