"""Runs a function in a process of its own, where what it measures is its own alone.

    in_fresh_process(peak_of_reading, path)

pytest's process holds what thousands of tests have left, and gives it back whenever it likes.
"""

import asyncio
import contextlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def in_fresh_process(function, *args, **options):
    """What a module's `function`, perhaps a coroutine's, gives; its errors are on stderr."""
    call = pickle.dumps((function, args, options))
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=call, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    return pickle.loads(done.stdout)


def main():
    """Answer one call."""
    function, args, options = pickle.load(sys.stdin.buffer)
    with contextlib.redirect_stdout(sys.stderr):
        result = function(*args, **options)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
    sys.stdout.buffer.write(pickle.dumps(result))


if __name__ == "__main__":
    main()
