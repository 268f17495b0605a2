"""Compiles `free_blocks.c`. Standard library only: see `engine.system.c_compiler`.

By hand: `python -m engine.kv.free_library_build`.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.system.c_compiler import find_compiler, run_compiler

SOURCE = Path(__file__).resolve().with_name("free_blocks.c")
LIBRARY_NAME = "libsessiond_blocks.so"
LIBRARY = SOURCE.with_name(LIBRARY_NAME)
_FLAGS = ("-std=gnu11", "-fPIC", "-fvisibility=hidden", "-O2", "-Wall", "-Wextra")


def build(target: Path, flags: Sequence[str] = ()) -> None:
    """Compile the library to `target`, replacing it at the end in one rename.

    Raises:
        BuildError: there is no compiler, or it rejected the code.
    """
    compiler = find_compiler().split()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        library = Path(folder) / LIBRARY_NAME
        run_compiler([*compiler, *_FLAGS, *flags, "-shared", str(SOURCE), "-o", str(library)])
        library.replace(target)


if __name__ == "__main__":
    build(LIBRARY)
    sys.stdout.write(f"{LIBRARY}\n")
