"""Runs a function in a process of its own, where what it measures is its own alone.

    in_fresh_process(peak_of_reading, path)

pytest's process holds what thousands of tests have left, and gives it back whenever it likes.
"""

import asyncio
import inspect
import multiprocessing
from concurrent.futures import ProcessPoolExecutor


def in_fresh_process(function, *args, **options):
    """What `function` of a module gives, or the error that it raises; it may be a coroutine's."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_call, function, args, options).result()


def _call(function, args, options):
    result = function(*args, **options)
    return asyncio.run(result) if inspect.iscoroutine(result) else result
