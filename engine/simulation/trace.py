"""Requests of a trace: session, time of arrival, and blocks of the prompt."""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO


class TraceError(Exception):
    """A trace file can't be read; the message says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn. Equal ids in `blocks` mean an equal prompt up to and including that block.

    `known_blocks` of them, from the front, were part of earlier prompts; `new_tokens` were not
    part of the session's last turn.
    """

    at_s: float
    session: str
    blocks: Sequence[int]
    known_blocks: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """`requests` can be iterated more than once; `block_tokens` is the size of a block."""

    name: str
    block_tokens: int
    requests: Iterable[Request]


MOONCAKE_BLOCK_TOKENS = 512
BURSTGPT_BLOCK_TOKENS = 16


def read_trace(path: Path) -> Trace:
    """Read a trace in the format of Mooncake (JSON lines) or BurstGPT (CSV with session ids).

    Raises:
        TraceError: there is no such file, or a line of it can't be read.
    """
    try:
        with _open(path) as lines:
            if ".jsonl" in path.suffixes:
                requests, tokens = list(_mooncake(lines)), MOONCAKE_BLOCK_TOKENS
            elif ".csv" in path.suffixes:
                requests, tokens = list(_burstgpt(lines)), BURSTGPT_BLOCK_TOKENS
            else:
                raise TraceError(f"{path}: name must end in .jsonl, .csv, .jsonl.gz or .csv.gz")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if not requests:
        raise TraceError(f"{path}: the trace must have a request (got none)")
    return Trace(name=path.name.split(".")[0], block_tokens=tokens, requests=requests)


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


class _Sessions:
    """Builds requests, with the known blocks and tokens of earlier ones."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._tokens: dict[str, int] = {}

    def request(
        self, at_s: float, session: str, blocks: Sequence[int], prompt: int, reply: int
    ) -> Request:
        known = next((i for i, block in enumerate(blocks) if block not in self._seen), len(blocks))
        self._seen.update(blocks[known:])
        new_tokens = max(0, prompt - self._tokens.get(session, 0))
        self._tokens[session] = prompt + reply
        return Request(
            at_s=at_s,
            session=session,
            blocks=blocks,
            known_blocks=known,
            new_tokens=new_tokens,
        )


def _mooncake(lines: Iterable[str]) -> Iterator[Request]:
    sessions = _Sessions()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            blocks = [first + i for first, count in row["blocks"] for i in range(count)]
            yield sessions.request(
                float(row["t"]),
                str(row["session"]),
                blocks,
                int(row["input_len"]),
                int(row["output_len"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(f"line {number}: {error!r}") from error


def _burstgpt(lines: Iterable[str]) -> Iterator[Request]:
    """Prompts are cumulative, as in a chat: a session's blocks begin with its earlier ones."""
    sessions, first_block = _Sessions(), _FirstBlock()
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            prompt = int(row["input_len"])
            first = first_block.of(row["session"])
            blocks = range(first, first + prompt // BURSTGPT_BLOCK_TOKENS)
            yield sessions.request(
                float(row["t"]), row["session"], blocks, prompt, int(row["output_len"])
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(f"line {number}: {error!r}") from error


_MOST_BLOCKS = 2**16  # of one session: a million tokens


class _FirstBlock:
    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def of(self, session: str) -> int:
        return self._of.setdefault(session, len(self._of) * _MOST_BLOCKS)
