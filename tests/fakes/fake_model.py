"""A ModelRunner without torch, for tests of everything above the model. Also its oracle.

    draw = Draw()                                  # how the next token follows from a context
    model = FakeModel(num_blocks=64, block_size=16, draw=draw)
    expected_reply(ids, draw=draw, max_output_tokens=8)   # what a right engine must answer

The fake keeps one number per KV slot: a hash of the token there, its position and the number in
the slot before, which it reads through the page table, as attention would. The next token is a
hash of all numbers and positions that the page table names. So a wrong table, a stale block, a
wrong position, a missed copy or a wrongly shared prefix change the reply.

Replies are printable ASCII unless scripted. Faults and hooks, all usable between any two steps:
    model.script([72, 105, FakeText.STOP])   the next turn that starts replies with these ids
                                             (after the last one: hashes again)
    model.fail_at.add(model.steps + 1)       that step raises InjectedFaultError (counted from 1)
    model.poison_at.add(model.steps + 1)     all sequences of that step have no finite logits
    model.gate = threading.Event()           every step waits until the gate is set
"""

import threading
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import NOT_FINITE, SequenceStep
from engine.kv.token_counts import Occurrences, TokenCounts

PRINTABLE = tuple(range(32, 127))


class FakeText:
    """A byte-level tokenizer: ids 0 to 255 are bytes, those above are specials without text."""

    STOP = 256
    NEWLINE = 10
    SPECIALS = 8

    vocab_size = 256 + SPECIALS

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class InjectedFaultError(Exception):
    """The fault that a test asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How the next token follows from a context: one in `stop_every` (0: none) is `stop_id`."""

    vocabulary: Sequence[int] = PRINTABLE
    stop_id: int = FakeText.STOP
    stop_every: int = 0

    def token(
        self,
        states: bytes,
        positions: bytes,
        sampling: Sampling,
        output_index: int,
        counted: Occurrences | None = None,
    ) -> int:
        """Greedy replies depend on the context only, others on seed and output index too.

        With penalties they depend on what was counted.
        """
        seed = b""
        if sampling.temperature > 0:
            seed = b"%d %d" % (sampling.seed, output_index)
        if counted is not None:
            seed += counted.ids.tobytes() + counted.in_reply.tobytes()
        digest = blake2b(states + positions + seed, digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        if self.stop_every and (number >> 32) % self.stop_every == 0:
            return self.stop_id
        return self.vocabulary[number % len(self.vocabulary)]


def next_state(previous: int, token: int, position: int) -> int:
    """What a slot holds: tuples of ints hash alike in every process."""
    return hash((previous, token, position))


def expected_reply(
    ids: Sequence[int],
    *,
    draw: Draw,
    max_output_tokens: int,
    stop_ids: Sequence[int] = (FakeText.STOP,),
    sampling: Sampling | None = None,
) -> list[int]:
    """Ids that a right engine samples after `ids`, a stop id included. Knows no cache."""
    sampling = sampling or Sampling(temperature=0)
    states = array("q")
    for position, token in enumerate(ids):
        states.append(next_state(states[-1] if states else 0, token, position))
    counts = TokenCounts(ids, uncounted=stop_ids) if sampling.has_penalties else None
    reply: list[int] = []
    while len(reply) < max_output_tokens:
        positions = array("q", range(len(states)))
        counted = counts.after(()) if counts else None
        token = draw.token(states.tobytes(), positions.tobytes(), sampling, len(reply), counted)
        reply.append(token)
        if token in stop_ids:
            break
        if counts:
            counts.add(token)
        states.append(next_state(states[-1], token, len(states)))
    return reply


class FakeModel:
    """See the module's docstring. `batches` counts the sequences of each step."""

    def __init__(self, *, num_blocks: int, block_size: int, draw: Draw | None = None) -> None:
        self.draw = draw or Draw()
        self.block_size = block_size
        self.steps = 0
        self.batches: list[int] = []
        self.computed_tokens = 0
        self.copies: list[tuple[int, int]] = []
        self.fail_at: set[int] = set()
        self.poison_at: set[int] = set()
        self.gate: threading.Event | None = None
        self.slots = array("q", bytes(8 * num_blocks * block_size))
        self.slot_bytes = np.frombuffer(self.slots, dtype=np.uint8).reshape(num_blocks, -1)
        self._scripts: deque[list[int]] = deque()
        self._scripted: dict[int, list[int]] = {}

    def script(self, reply: list[int]) -> None:
        self._scripts.append(list(reply))

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        self.steps += 1
        self.batches.append(len(batch))
        if self.gate is not None and not self.gate.wait(timeout=60):
            raise TimeoutError("the test never opened the gate")
        _check_nobody_writes_what_another_reads(batch)
        for sequence in batch:
            self._write(sequence)
        if self.steps in self.fail_at:
            raise InjectedFaultError(f"step {self.steps}")
        sampled = [token for sequence in batch for token in self._sample(sequence)]
        return [NOT_FINITE] * len(sampled) if self.steps in self.poison_at else sampled

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        self.copies.append((source, target))
        size = self.block_size
        self.slots[target * size : (target + 1) * size] = self.slots[
            source * size : (source + 1) * size
        ]

    def read_block(self, block: int, into: np.ndarray) -> None:
        into[: 8 * self.block_size] = self.slot_bytes[block]

    def write_block(self, block: int, data: np.ndarray) -> None:
        self.slot_bytes[block] = data[: 8 * self.block_size]

    def zero_block(self, block: BlockId) -> None:
        size = self.block_size
        self.slots[block * size : (block + 1) * size] = array("q", bytes(8 * size))

    def _write(self, sequence: SequenceStep) -> None:
        count = len(sequence.token_ids)
        self.computed_tokens += count
        slots = _last_slots(sequence.entries, count + 1, self.block_size)
        state = self.slots[slots[0][0]] if len(slots) > count else 0
        for offset, token in enumerate(sequence.token_ids):
            slot, position = slots[offset - count]
            if position != sequence.first_position + offset:
                raise AssertionError(f"token {offset} at {position}: {sequence}")
            state = next_state(state, token, position)
            self.slots[slot] = state

    def _sample(self, sequence: SequenceStep) -> Iterator[int]:
        if sequence.sample is None:
            return
        states, positions = self._read(sequence.entries)
        first_end = len(states) - sequence.sample.drafts
        for end, at in enumerate(sequence.samples, first_end):
            index = at.output_index
            reply = self._script_of(states[end - 1 - index], index)
            if reply is not None and index < len(reply):
                yield reply[index]
            else:
                counted = at.counts.after(at.after) if at.counts else None
                yield self.draw.token(
                    states[:end].tobytes(), positions[:end].tobytes(), at.sampling, index, counted
                )

    def _script_of(self, prompt_state: int, index: int) -> list[int] | None:
        # The state at the prompt's end names the turn, also when it is computed once more.
        if index == 0 and prompt_state not in self._scripted and self._scripts:
            self._scripted[prompt_state] = self._scripts.popleft()
        return self._scripted.get(prompt_state)

    def _read(self, entries: Sequence[PageEntry]) -> tuple["array[int]", "array[int]"]:
        states, positions = array("q"), array("q")
        for block, first, last, base in entries:
            at = block * self.block_size
            states += self.slots[at + first : at + last + 1]
            positions.extend(range(base + first, base + last + 1))
        return states, positions


def _last_slots(entries: Sequence[PageEntry], count: int, block_size: int) -> list[tuple[int, int]]:
    """(slot, position) of the last `count` valid slots, fewer if there are fewer; in order."""
    slots: list[tuple[int, int]] = []
    for block, first, last, base in reversed(entries):
        for slot in range(last, first - 1, -1):
            if len(slots) == count:
                return slots[::-1]
            slots.append((block * block_size + slot, base + slot))
    return slots[::-1]


def _check_nobody_writes_what_another_reads(batch: Sequence[SequenceStep]) -> None:
    writer: dict[int, int] = {}
    for index, sequence in enumerate(batch):
        left = len(sequence.token_ids)
        for block, first, last, _ in reversed(sequence.entries):
            if left <= 0:
                break
            if writer.setdefault(block, index) != index:
                raise AssertionError(f"two sequences write block {block}")
            left -= last - first + 1
    for index, sequence in enumerate(batch):
        for entry in sequence.entries:
            if writer.get(entry.block, index) != index:
                raise AssertionError(f"block {entry.block} is written while another reads it")
