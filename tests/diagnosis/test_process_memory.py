"""What a process says that it holds."""

import ctypes
import mmap
from pathlib import Path

from engine.process_memory import keep_out_of_dumps, process_memory

MIB = 2**20


def test_only_the_part_of_the_pool_that_was_written_to_counts_as_committed():
    """Whatever lies beside it: the system makes one mapping of neighbours that are alike."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    size = 96 * MIB
    around = [mmap.mmap(-1, size + more, flags=flags) for more in (MIB, 0, MIB)]
    for pages in around:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        pages.write(b"\1" * (8 * MIB))
    pool = around[1]
    address = ctypes.addressof(ctypes.c_char.from_buffer(pool))
    keep_out_of_dumps(address, size)
    committed = process_memory(size).kv_committed_bytes
    pool.seek(32 * MIB)
    pool.write(b"\1" * (16 * MIB))
    assert committed == 8 * MIB
    assert process_memory(size).kv_committed_bytes == 24 * MIB


def test_the_parts_are_the_whole():
    memory = process_memory()
    parts = memory.anonymous_bytes + memory.mapped_files_bytes
    assert abs(memory.rss_bytes - parts) < MIB
    assert memory.peak_rss_bytes >= memory.rss_bytes
    assert memory.heap_used_bytes < memory.anonymous_bytes
    assert memory.kv_committed_bytes == 0
    with Path(__file__).open() as file:
        assert process_memory().files == memory.files + 1, file
