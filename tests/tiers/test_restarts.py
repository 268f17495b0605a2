"""What is on disk when an engine ends is there for the next one."""

from pathlib import Path

from tests.harness.loop import KV_BYTES_PER_BLOCK
from tests.tiers.engine_words import PROMPT, QUIET, again, used
from tests.tiers.support import LateMover, PromptMover, tiers_of


def test_a_restarted_engine_finds_its_kv_on_disk(make, make_engine, tmp_path: Path) -> None:
    engine = make("disk")
    ids = used(engine)
    engine.loop.close()
    later = make_engine(
        tiers=tiers_of(PromptMover(), KV_BYTES_PER_BLOCK, disk=256, folder=tmp_path), **QUIET
    )
    later.open("a", ids)
    counts = again(later, ids)
    assert (counts.restored_tokens, counts.restored_from) == (96, "disk")
    assert counts.recomputed_tokens == len(ids) - 96


def test_what_is_due_is_written_when_the_engine_stops(make, make_engine, tmp_path: Path) -> None:
    mover = LateMover()
    engine = make("disk", mover)
    engine.open("a")
    turn = engine.submit("a", PROMPT)
    engine.step_until(lambda: engine.ending(turn) is not None)
    assert engine.stats().tiers["disk"].blocks == 0
    ids = [*PROMPT, *engine.kept(turn)]
    engine.loop.close()
    later = make_engine(
        tiers=tiers_of(PromptMover(), KV_BYTES_PER_BLOCK, disk=256, folder=tmp_path), **QUIET
    )
    later.open("a", ids)
    assert again(later, ids).restored_tokens == 96


def test_another_models_file_is_not_used(make, make_engine, tmp_path: Path) -> None:
    """T35 for tiers: the same ids and other weights under one name."""
    engine = make("disk")
    ids = used(engine)
    engine.loop.close()
    build = tiers_of(
        PromptMover(),
        KV_BYTES_PER_BLOCK,
        disk=256,
        folder=tmp_path,
        fingerprint=b"o" * 32,
    )
    later = make_engine(tiers=build, **QUIET)
    later.open("a", ids)
    assert again(later, ids).restored_tokens == 0
