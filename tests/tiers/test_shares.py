"""Whose KV a tier holds, and how much of it."""

from pathlib import Path

from engine.ipc.messages import Terms
from engine.kv.hashing import owner_id
from tests.harness.loop import KV_BYTES_PER_BLOCK
from tests.tiers.engine_words import PROMPT, QUIET, again, fill, used
from tests.tiers.support import PromptMover, tiers_of


def test_other_tenants_never_hit_each_others_kv(make, tier: str) -> None:
    engine = make(tier)
    engine.open("a", salt=b"one")
    turn = engine.turn("a", PROMPT)
    ids = [*PROMPT, *engine.kept(turn)]
    fill(engine)
    engine.open("b", ids, salt=b"two")
    assert again(engine, ids, session="b").restored_tokens == 0
    fill(engine)
    engine.open("c", ids, salt=b"one")
    assert again(engine, ids, session="c").restored_tokens == 96


def test_a_tier_never_holds_more_than_its_limit(make, tmp_path: Path) -> None:
    """T33 (llama.cpp#25070): a session larger than the limit is kept as far as it fits."""
    engine = make("both", host=3, disk=4)
    ids = used(engine)
    stats = engine.stats().tiers
    assert (stats["host"].blocks, stats["host"].bytes) == (3, 3 * KV_BYTES_PER_BLOCK)
    assert (stats["disk"].blocks, stats["disk"].bytes) == (4, 4 * 4096)
    path = next(tmp_path.iterdir())
    assert path.stat().st_size <= 4096 + 4 * 4096
    fill(engine)
    again(engine, ids)
    assert path.stat().st_size <= 4096 + 4 * 4096


def test_a_user_has_no_more_in_a_tier_than_it_may_and_takes_nothing_from_others(
    make, make_engine, tier: str, tmp_path: Path
) -> None:
    engine = make(tier)
    slot_bytes = next(iter(engine.loop.memory.kv_transfer.tiers)).slot_bytes
    limited = Terms(max_host_bytes=3 * slot_bytes + 1, max_disk_bytes=3 * slot_bytes + 1)
    index = next(iter(engine.loop.memory.kv_transfer.tiers)).index
    for name, salt, terms in (("a", b"one", limited), ("b", b"two", Terms())):
        engine.open(name, salt=salt)
        engine.turn(name, PROMPT, terms=terms)
    assert index.blocks_of(owner_id(b"one")) == 3
    assert index.blocks_of(owner_id(b"two")) == 6
    engine.turn("a", [7] * 40, terms=limited)
    assert index.blocks_of(owner_id(b"one")) == 3
    engine.turn("a", [7] * 40, terms=Terms())
    assert index.blocks_of(owner_id(b"one")) > 3
    if tier == "disk":  # whose a block is survives a restart
        expected = index.blocks_of(owner_id(b"one"))
        engine.loop.close()
        build = tiers_of(PromptMover(), KV_BYTES_PER_BLOCK, disk=256, folder=tmp_path)
        later = make_engine(tiers=build, **QUIET)
        assert (
            next(iter(later.loop.memory.kv_transfer.tiers)).index.blocks_of(owner_id(b"one"))
            == expected
        )


def test_a_user_that_may_have_nothing_there_has_nothing_there(make, tier: str) -> None:
    engine = make(tier)
    engine.open("a")
    engine.turn("a", PROMPT, terms=Terms(max_host_bytes=0, max_disk_bytes=0))
    engine.park("a")
    engine.run()
    assert engine.stats().tiers[tier].blocks == 0
