"""Requests of a trace: session, time of arrival, and blocks of the prompt."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any


class TraceError(Exception):
    """A trace file can't be read; the message says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn. Equal ids in `blocks` mean an equal prompt up to and including that block.

    `known_blocks` of them, from the front, were part of earlier prompts; `new_tokens` were not
    part of the session's last turn. The reply had `reply_tokens`.
    """

    at_s: float
    session: str
    blocks: Sequence[int]
    known_blocks: int
    new_tokens: int
    reply_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """`requests` can be iterated more than once; `block_tokens` is the size of a block."""

    name: str
    block_tokens: int
    requests: Iterable[Request]


MOONCAKE_BLOCK_TOKENS = 512
CHAT_BLOCK_TOKENS = 16


def read_trace(path: Path) -> Trace:
    """Read a trace: JSON lines, with or without Mooncake's block ids, or BurstGPT's CSV.

    docs/traces.md describes both. Without block ids prompts are cumulative, as in a chat.

    Raises:
        TraceError: there is no such file, or a line of it can't be read.
    """
    try:
        with _open(path) as lines:
            rows = _rows(path, lines)
            first = next(rows, None)
            if first is None:
                raise TraceError(f"{path}: the trace must have a request (got none)")
            has_blocks = "blocks" in first[1]
            requests = list(_requests(chain([first], rows), has_blocks=has_blocks))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TraceError(f"{path}: the trace must be UTF-8 (got byte 0x{byte:02x})") from error
    except (EOFError, zlib.error, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from error
    tokens = MOONCAKE_BLOCK_TOKENS if has_blocks else CHAT_BLOCK_TOKENS
    return Trace(name=path.name.split(".")[0], block_tokens=tokens, requests=requests)


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


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
            reply_tokens=reply,
        )


_Row = tuple[int, Mapping[str, Any]]  # with the number of its line


def _rows(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
    if ".jsonl" in path.suffixes:
        return _json_rows(lines)
    if ".csv" in path.suffixes:
        return enumerate(csv.DictReader(lines), 2)
    raise TraceError(f"{path}: name must end in .jsonl, .csv, .jsonl.gz or .csv.gz")


def _json_rows(lines: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TraceError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise TraceError(f"line {number} must be an object (got {line.strip()[:80]})")
        yield number, row


def _requests(rows: Iterable[_Row], *, has_blocks: bool) -> Iterator[Request]:
    """Without block ids a session's blocks begin with its earlier ones."""
    sessions, first_block = _Sessions(), _FirstBlock()
    for number, row in rows:
        if has_blocks != ("blocks" in row):
            raise TraceError(f"line {number}: all lines or none must have blocks")
        try:
            session, prompt = str(row["session"]), int(row["input_len"])
            first = first_block.of(session)
            blocks: Sequence[int] = range(first, first + prompt // CHAT_BLOCK_TOKENS)
            if has_blocks:
                blocks = [start + i for start, count in row["blocks"] for i in range(count)]
            yield sessions.request(float(row["t"]), session, blocks, prompt, int(row["output_len"]))
        except KeyError as error:
            raise TraceError(f"line {number}: {error.args[0]} is missing") from error
        except (ValueError, TypeError) as error:
            raise TraceError(f"line {number}: {error!r}") from error


_MOST_BLOCKS = 2**16  # of one session: a million tokens


class _FirstBlock:
    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def of(self, session: str) -> int:
        return self._of.setdefault(session, len(self._of) * _MOST_BLOCKS)
