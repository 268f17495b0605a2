"""How the run tells the engine's process which fault its model is to meet, and hears that it did.

An order is an empty file in a folder, named by its number and kind; whoever meets the fault takes
it away. So an order outlives the engine that was killed before it could meet it.
"""

from pathlib import Path


class Orders:
    """The folder; both processes have one of these."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        folder.mkdir(parents=True, exist_ok=True)

    def give(self, kind: str) -> None:
        self._number += 1
        (self._folder / f"{self._number:06}.{kind}").touch()

    def waiting(self, kind: str) -> bool:
        """Whether an order of this kind has not been met yet."""
        return any(self._folder.glob(f"*.{kind}"))

    def take(self, *kinds: str) -> str | None:
        """Meet the oldest order of these kinds."""
        for path in sorted(self._folder.iterdir()):
            kind = path.suffix.removeprefix(".")
            if kind in kinds:
                path.unlink()
                return kind
        return None

    def clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)
