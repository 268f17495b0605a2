"""Ways to cut one sequence's work. All give the same logits, bit for bit."""

from itertools import pairwise

import numpy as np

from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import SampleAt, SequenceStep

GREEDY = SampleAt(sampling=Sampling(temperature=0.0), output_index=0)


def entries(blocks, length):
    return tuple(
        PageEntry(BlockId(block), 0, min(16, length - base) - 1, base)
        for block, base in zip(blocks, range(0, length, 16), strict=False)
    )


def part(ids, start, end, blocks, sample=GREEDY):
    """Compute `ids[start:end]` of a sequence that lies in `blocks` from position 0."""
    return SequenceStep(
        token_ids=ids[start:end],
        first_position=start,
        entries=entries(blocks, end),
        sample=sample,
    )


def by_chunks(runner, ids, blocks, cuts):
    """Logits of every token [len(ids), vocab], computed alone, from cut to cut."""
    edges = [0, *cuts, len(ids)]
    return np.concatenate(
        [
            runner.logits([part(ids, start, end, blocks)], every_token=True)
            for start, end in pairwise(edges)
            if end > start
        ]
    )


def together(runner, sequences, chunk):
    """Logits of every token of several sequences [(ids, blocks)], a chunk of each per step."""
    done = [0] * len(sequences)
    logits = [[] for _ in sequences]
    while any(at < len(ids) for at, (ids, _) in zip(done, sequences, strict=True)):
        steps, who = [], []
        for index, (ids, blocks) in enumerate(sequences):
            # unlike chunks, so that prefill and decode share steps
            end = min(len(ids), done[index] + (chunk if index % 2 else 1))
            if end > done[index]:
                steps.append(part(ids, done[index], end, blocks))
                who.append((index, end - done[index]))
                done[index] = end
        rows = iter(
            np.split(
                runner.logits(steps, every_token=True), np.cumsum([count for _, count in who])[:-1]
            )
        )
        for index, _ in who:
            logits[index].append(next(rows))
    return [np.concatenate(parts) for parts in logits]
