"""The auditor: each kind of damage is found and named."""

from collections.abc import Callable

import pytest

from tests.core import corruption
from tests.harness.loop import KV_BYTES_PER_BLOCK, Engine


@pytest.fixture
def used() -> Engine:
    """Two sessions on shared blocks, cached and free ones left."""
    engine = Engine(num_blocks=16)
    engine.open("a")
    engine.turn("a", range(40))
    engine.fork("b", "a", 35)
    engine.turn("b", [9] * 30)
    engine.truncate("b", 20)
    assert engine.audit().ok
    return engine


def test_a_sound_engine_has_nothing_to_report(used: Engine) -> None:
    report = used.audit()
    assert report.violations == []
    assert report.leaked_blocks == 0
    assert report.total_blocks == 16
    assert report.free_blocks + report.cached_blocks + report.active_blocks == 16
    assert min(report.free_blocks, report.cached_blocks, report.active_blocks) > 0
    assert report.device_bytes == 16 * KV_BYTES_PER_BLOCK
    assert report.rss_bytes > 1_000_000


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (corruption.leak, "references counted, 0 in tables"),
        (corruption.lose_a_reference, "1 references counted, 2 in tables"),
        (corruption.list_a_block_twice, "in 2 lists"),
        (corruption.list_an_active_block, "in 1 lists"),
        (corruption.break_the_chain_of_cached_blocks, "cached blocks counted, 0 listed"),
        (corruption.forget_a_hashed_block, "marked as hashed"),
        (corruption.hash_a_free_block, "free, but hashed"),
        (corruption.make_a_cached_block_writable, "writable in the pool"),
        (corruption.change_ids_under_their_kv, "hashed under other ids"),
        (corruption.drop_ids_under_their_kv, "5 ids"),
        (corruption.leave_a_turns_ids, "idle with 1 ids not committed"),
        (corruption.leave_reserved_blocks, "idle with 1 blocks reserved"),
        (corruption.reserve_a_hashed_block, "is hashed or shared"),
        (corruption.leave_drafts_to_a_turn, "1 drafts after"),
        (corruption.leave_drafts_behind_ids_without_kv, "1 drafts after"),
        (corruption.draft_beyond_the_tail, "16 drafts, room"),
        (corruption.use_a_block_twice, "a block occurs twice"),
        (corruption.swap_two_entries, "positions overlap"),
        (corruption.break_a_range, "no valid range"),
        (corruption.miscount_kept_tokens, "not the number of valid slots"),
        (corruption.move_the_next_position, "does not follow"),
        (corruption.find_a_block_under_a_foreign_key, "not its own"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_damage_is_reported(used: Engine, damage: Callable[[Engine], None], words: str) -> None:
    damage(used)
    report = used.audit()
    assert not report.ok
    assert any(words in violation for violation in report.violations), report.violations


def test_leaked_blocks_are_counted(used: Engine) -> None:
    corruption.leak(used)
    assert used.audit().leaked_blocks == 2


def test_an_audit_repairs_nothing(used: Engine) -> None:
    corruption.leak(used)
    assert used.audit().violations == used.audit().violations
