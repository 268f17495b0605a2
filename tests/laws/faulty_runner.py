"""A runner whose steps fail when a test wants it."""

from engine.kv.step import SequenceStep


class Faulty:
    """Passes steps on; now and then one fails, before or after it has written."""

    def __init__(self, runner: object) -> None:
        self.runner = runner
        self.fail_next: str | None = None
        self.copy_block = runner.copy_block
        self.read_block = runner.read_block
        self.write_block = runner.write_block
        self.zero_block = runner.zero_block
        self.move_pages = getattr(runner, "move_pages", None)

    def execute(self, batch: list[SequenceStep]) -> list[int]:
        failing, self.fail_next = self.fail_next, None
        tokens = self.runner.execute(batch) if failing != "before" else []
        if failing:
            raise RuntimeError("this step fails on purpose")
        return tokens
