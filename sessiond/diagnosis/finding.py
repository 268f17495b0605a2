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
    """`what` was seen, what it `means` and what to `do`. A `fault` is one of the server's own."""

    code: Code
    what: str
    means: str
    do: str
    fault: bool = False
