"""Nothing rises as turns go by and clients leave at random: blocks, files, tasks, memory.

    CI            17,000 turns on the engine and 3,000 through the whole stack
    make soak     50,000 and 50,000

Each is a process of its own, so that nothing of the clients and of other tests is measured. In CI
the stack's second half is too short to tell a KiB from an arena more or less, and rare statements
come for the first time.
"""

import time

import pytest

from tests.fresh_process import in_fresh_process
from tests.soak import SOAK
from tests.soaks.curve import KIB, Curve, Sample
from tests.soaks.runs import soak_engine, soak_stack

pytestmark = [
    pytest.mark.serial,
    pytest.mark.second,
    pytest.mark.soak,
    pytest.mark.timeout(4 * 3600 if SOAK else 900),
]

ENGINE_TURNS = 50_000 if SOAK else 17_000
STACK_TURNS = 50_000 if SOAK else 3_000
SEED = time.time_ns() if SOAK else 1  # in what is shown of a failure
TRACED_TURNS = 600
HOST_TIER_BYTES = 64 * 128
BLOCKS = 50  # of Python's allocator, per 100 turns: one object in two turns
FULL = {"rss_bytes": KIB, "python_blocks": BLOCKS}
SHORT = {"rss_bytes": 128 * KIB, "heap_bytes": 64 * KIB, "python_blocks": 4 * BLOCKS}


def assert_flat(curve):
    """What is counted is exactly as before; the tier holds no more than it may."""
    assert curve.spread("free_blocks") == 0, curve
    assert curve.spread("files") == 0, curve
    assert curve.spread("tasks") == 0, curve
    assert all(one.active_blocks == 0 for one in curve.samples), curve
    assert max(one.host_bytes for one in curve.samples) <= HOST_TIER_BYTES, curve


def assert_slow(curve, limits, repeat, trace):
    """No slope above its limit, or not twice: what leaks rises each time, a heap jumps at times.

    Else a shorter run shows who allocates what stays.
    """
    rising = rises(curve, limits)
    if not rising:
        return
    again = repeat()
    if rising.keys() & rises(again, limits).keys():
        pytest.fail(f"seed {SEED}: {rising}\n{curve}\n{again}\n{trace().allocations}")


def rises(curve, limits):
    return {name: curve.slope(name) for name, most in limits.items() if curve.slope(name) > most}


def test_the_engine_holds_no_more_after_many_turns_than_after_some():
    def run(turns=ENGINE_TURNS, **options):
        return in_fresh_process(soak_engine, turns, SEED, **options)

    curve = run()
    assert_flat(curve)
    assert all(one.contexts == 0 for one in curve.samples), curve
    assert_slow(curve, FULL, run, lambda: run(TRACED_TURNS, trace=True))


def test_the_whole_stack_holds_no_more_after_many_turns_than_after_some(sqlite_files):
    files = iter(sqlite_files)

    def run(turns=STACK_TURNS, **options):
        return in_fresh_process(soak_stack, next(files), turns, SEED, **options)

    curve, counts = run()
    assert all(counts.done.values()), "every way to leave was taken"
    assert_flat(curve)
    limits = FULL if SOAK else SHORT
    assert_slow(curve, limits, lambda: run()[0], lambda: run(TRACED_TURNS, trace=True)[0])


def test_what_rises_twice_fails_and_what_jumps_once_does_not():
    def curve(*bytes_held):
        one = {"python_blocks": 0, "files": 1, "free_blocks": 1, "active_blocks": 0}
        samples = [
            Sample(turns=100 * number, rss_bytes=held, **one)
            for number, held in enumerate(bytes_held, 1)
        ]
        return Curve("made up", samples=samples)

    rising, flat = curve(*range(0, 40_000, 2000)), curve(*[0] * 20)
    assert_slow(flat, FULL, None, None)
    assert_slow(rising, FULL, lambda: flat, None)
    with pytest.raises(pytest.fail.Exception, match="rss_bytes"):
        assert_slow(rising, FULL, lambda: rising, lambda: flat)
