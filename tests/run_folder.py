"""A folder that all processes of one run of tests share, and locks in it."""

import contextlib
import fcntl
import os
from pathlib import Path

VARIABLE = "TESTS_RUN_FOLDER"


def run_folder() -> Path:
    """The run's folder; it is deleted at the end."""
    return Path(os.environ[VARIABLE])


@contextlib.contextmanager
def locked(path):
    """Only one process of a run makes what is to be at the path."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
