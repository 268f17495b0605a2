"""What a process says that it holds: a fresh one, since pytest's holds what other tests left."""

import ctypes
import mmap
from pathlib import Path

from engine.system.process_memory import keep_out_of_dumps, process_memory
from tests.fresh_process import in_fresh_process

MIB = 2**20
POOL_BYTES = 96 * MIB


def test_only_the_part_of_the_pool_that_was_written_to_counts_as_committed():
    """Whatever lies beside it: the system makes one mapping of neighbours that are alike."""
    assert in_fresh_process(committed_before_and_after_a_write) == (8 * MIB, 24 * MIB)


def committed_before_and_after_a_write():
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    around = [mmap.mmap(-1, POOL_BYTES + more, flags=flags) for more in (MIB, 0, MIB)]
    for pages in around:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        pages.write(b"\1" * (8 * MIB))
    pool = around[1]
    address = ctypes.addressof(ctypes.c_char.from_buffer(pool))
    keep_out_of_dumps(address, POOL_BYTES)
    before = process_memory(POOL_BYTES).kv_committed_bytes
    pool.seek(32 * MIB)
    pool.write(b"\1" * (16 * MIB))
    return before, process_memory(POOL_BYTES).kv_committed_bytes


def test_the_parts_are_the_whole():
    memory, with_a_file_more = in_fresh_process(twice_looked)
    parts = memory.anonymous_bytes + memory.mapped_files_bytes
    assert abs(memory.rss_bytes - parts) < MIB
    assert memory.peak_rss_bytes >= memory.rss_bytes
    assert memory.heap_used_bytes < memory.anonymous_bytes
    assert memory.kv_committed_bytes == 0
    assert with_a_file_more.files == memory.files + 1


def twice_looked():
    memory = process_memory()
    with Path(__file__).open():
        return memory, process_memory()
