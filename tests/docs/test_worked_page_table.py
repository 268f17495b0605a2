"""The page tables of docs/architecture.md are those of an engine on a fake model."""

from engine.ipc.messages import Edit, TurnDegraded
from tests.docs.blocks import table_rows
from tests.fakes.fake_model import FakeText
from tests.harness.loop import KV_BYTES_PER_BLOCK, Engine
from tests.tiers.support import PromptMover, tiers_of

PAGE, HEADING = "docs/architecture.md", "## A worked page table"
NUM_BLOCKS = 12
_UNCHANGED = "unchanged"
_ABSENT = "–"


def engine_of_the_page():
    host = tiers_of(PromptMover(), KV_BYTES_PER_BLOCK, host=64)
    return Engine(num_blocks=NUM_BLOCKS, tiers=host, num_speculative_tokens=0)


def entry_text(entry):
    return f"{entry.block}:{entry.first}-{entry.last}@{entry.base}"


class Times:
    """The rows of the page's table, as the engine has them."""

    def __init__(self, engine):
        self.engine = engine
        self.rows = []
        self.tables = ["", ""]

    def note(self):
        pool = self.engine.loop.memory.pool
        counts = f"{pool.active_count} + {pool.cached_count} + {pool.free_count}"
        number = str(len(self.rows) + 1)
        tables = [self.table("a"), self.table("b")]
        shown = [self.shown(*pair) for pair in zip(tables, self.tables, strict=True)]
        self.rows.append((number, *shown, counts))
        self.tables = tables

    @staticmethod
    def shown(table, before):
        return _UNCHANGED if table == before != _ABSENT else table

    def table(self, session):
        context = self.engine.loop.memory.contexts.get(session)
        if context is None:
            return _ABSENT
        return " ".join(map(entry_text, context.table.entries)) or "empty"

    def turn(self, session, prompt, output):
        """A turn of so many prompt ids, whose reply has so many ids, its stop id included."""
        self.engine.model.script([*range(65, 64 + output), FakeText.STOP])
        return self.engine.turn(session, [len(self.rows) + 1] * prompt)


def counts_of(engine, turn):
    counts = engine.ending(turn).counts
    return counts.reused_tokens, counts.restored_tokens, counts.recomputed_tokens, counts.new_tokens


def conversation(engine, times):
    """Times 1 to 7: two turns, a fork that writes, a trim, a swap."""
    assert counts_of(engine, times.turn("a", 30, 8)) == (0, 0, 0, 30)
    times.note()
    assert counts_of(engine, times.turn("a", 20, 9)) == (37, 0, 0, 22)
    times.note()
    engine.fork("b", "a", 40)
    times.note()
    assert counts_of(engine, times.turn("b", 10, 4)) == (40, 0, 0, 10)
    times.note()
    engine.edit("a", Edit(at=69, dropped=((10, 40),)))
    times.note()
    computed = engine.model.computed_tokens
    assert counts_of(engine, times.turn("a", 10, 6)) == (36, 0, 0, 13)
    # the prompt, the reply, the owed newline: nothing of the trimmed context again
    assert engine.model.computed_tokens - computed == 10 + 6 + 1
    times.note()
    engine.park("b")
    engine.run()
    times.note()


def returned(engine, times):
    """Time 8: another session's turn overwrites a block of B, then B returns."""
    engine.open("z")
    times.turn("z", 70, 2)
    engine.close("z")
    assert counts_of(engine, times.turn("b", 5, 6)) == (32, 16, 5, 7)
    times.note()


def preempted(engine, times):
    """Times 9 and 10: both decode until the pool is full."""
    memory = engine.loop.memory
    first = engine.submit("a", [9] * 10, max_output_tokens=40)
    second = engine.submit("b", [10] * 10, max_output_tokens=40)
    engine.step_until(lambda: not memory.contexts["b"].table.block_count)
    assert [e.step for e in engine.events[second] if isinstance(e, TurnDegraded)] == ["preempt"]
    times.note()
    engine.run()
    assert len(engine.kept(first)) == len(engine.kept(second)) == 42
    times.note()


def test_the_page_tables_of_the_page_are_those_of_an_engine():
    engine = engine_of_the_page()
    times = Times(engine)
    engine.open("a")
    conversation(engine, times)
    returned(engine, times)
    preempted(engine, times)
    engine.check()
    on_page = [(row[0], *row[2:]) for row in table_rows(PAGE, HEADING)]
    assert times.rows == on_page
