"""Page tables by hand."""

from engine.ids import BlockId
from engine.kv.page_table import PageEntry
from tests.model.support import table


def entry(block, first, last, base):
    return PageEntry(BlockId(block), first, last, base)


def straight(lengths, page_size=16):
    """Tables from position 0, no block in two of them, blocks in falling order."""
    counts = [-(-length // page_size) for length in lengths]
    tables, free = [], sum(counts)
    for length, count in zip(lengths, counts, strict=True):
        tables.append(table(range(free - 1, free - 1 - count, -1), length, page_size))
        free -= count
    return tables
