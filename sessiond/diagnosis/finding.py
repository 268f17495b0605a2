"""One explanation. Values only."""

from dataclasses import dataclass
from typing import Literal

Code = Literal[
    "kv_not_freed",
    "sessions_piling_up",
    "allocator_cache",
    "left_behind",
    "host_memory",
    "files_and_tasks",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`what` was found, what it `means` and what to `do`. `fault`: a bug in the server."""

    code: Code
    what: str
    means: str
    do: str
    fault: bool = False
