"""Runs C under the compiler's sanitizers, where it has them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.system.c_compiler import BuildError, find_compiler


def sanitizer_runtime(name):
    """Path of a runtime library, None where the compiler has none."""
    try:
        compiler = find_compiler().split()
    except BuildError:
        return None
    found = subprocess.run(
        [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return found if Path(found).is_absolute() else None


def drive(module, library, build, **env):
    """Build a sanitised library and let a module play with it; what that says.

    Fails with what the sanitizers found.
    """
    runtime = sanitizer_runtime("libasan.so")
    if runtime is None:
        pytest.skip("the compiler has no sanitizers")
    build(library)
    result = subprocess.run(
        [sys.executable, "-m", module, str(library)],
        env={
            **os.environ,
            "LD_PRELOAD": runtime,
            # the interpreter keeps memory until its end on purpose
            "ASAN_OPTIONS": "detect_leaks=0",
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout
