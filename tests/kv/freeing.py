"""The library that gives back many blocks: of this checkout, or one that a sanitizer watches.

`python -m tests.kv.freeing LIBRARY` plays random pools with it against the loop.
"""

import random
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from engine.errors import Corruption
from engine.ids import BlockId
from engine.kv import block_pool
from engine.kv.block_pool import BlockPool
from engine.kv.free_library import Library, load
from engine.kv.free_library_build import LIBRARY, LIBRARY_NAME, SOURCE, build
from engine.system.c_compiler import BuildError

_FOLDER = tempfile.TemporaryDirectory()


@cache
def give_library() -> Library:
    """The one beside the source when newer, else a fresh one."""
    path = LIBRARY
    if not path.exists() or path.stat().st_mtime < SOURCE.stat().st_mtime:
        path = Path(_FOLDER.name) / LIBRARY_NAME
        try:
            build(path)
        except BuildError:
            pytest.skip("no C compiler")
    library = load(path)
    assert library is not None
    return library


def assert_alike(one: BlockPool, other: BlockPool) -> None:
    """Order of both lists, counts, references and marks."""
    assert one.free_blocks() == other.free_blocks()
    assert one.cached_blocks() == other.cached_blocks()
    assert one.snapshot() == other.snapshot()
    assert one.reference_count == other.reference_count
    assert one.cached_count == other.cached_count


def play(library: Library, dice: random.Random) -> None:
    """Take, share, hash and give back on two pools, one with the library."""
    total = dice.randint(1, 300)
    pools = [BlockPool(total, lambda _: None, library=None)]
    pools.append(BlockPool(total, lambda _: None, library=library))
    held: list[list[int]] = []
    for _ in range(40):
        count = dice.randint(0, total)
        taken = [pool.try_take(count) for pool in pools]
        assert taken[0] == taken[1]
        held += [taken[0]] if taken[0] else []
        if held:
            again = dice.choices(dice.choice(held), k=dice.randint(0, 40))
            for pool in pools:
                pool.share(again)
                for block in again[::2]:
                    pool.mark_hashed(block)
            held += [again] if again else []
            blocks = held.pop(dice.randrange(len(held)))
            for wrong in ([*blocks, total], [-1, *blocks], [*blocks, *held_by_none(pools[0])]):
                _assert_refused(pools[1], wrong)
            for pool in pools:
                pool.free(blocks)
        assert_alike(*pools)


def held_by_none(pool: BlockPool) -> list[int]:
    """A block that nobody refers to, or of all the first once more than it has references."""
    free = pool.free_blocks() + pool.cached_blocks()
    return free[:1] or [0] * (pool.references(BlockId(0)) + 1)


def _assert_refused(pool: BlockPool, blocks: list[int]) -> None:
    before = pool.snapshot(), pool.reference_count, pool.cached_blocks()
    with pytest.raises(Corruption):
        pool.free(blocks)
    assert before == (pool.snapshot(), pool.reference_count, pool.cached_blocks())


if __name__ == "__main__":
    block_pool._FEW = 1  # noqa: SLF001 -- every list goes the way of long ones
    found = load(Path(sys.argv[1]))
    assert found is not None
    for seed in range(200):
        play(found, random.Random(seed))
    sys.stdout.write("clean\n")
