"""Runs the C compiler. Standard library only: the package's build imports it first."""

import os
import shutil
import subprocess
from collections.abc import Sequence


class BuildError(Exception):
    """C code can't be compiled here. The message is the compiler's."""


def find_compiler() -> str:
    """Return the C compiler: $CC, or the first of cc, gcc, clang.

    Raises:
        BuildError: no compiler was found.
    """
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name
    raise BuildError("no C compiler (cc, gcc or clang) was found")


def run_compiler(command: Sequence[str]) -> None:
    """Run one compiler command.

    Raises:
        BuildError: the compiler rejected the code.
    """
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- the compiler
    if result.returncode:
        raise BuildError(result.stderr.strip() or f"{command[0]} failed")
