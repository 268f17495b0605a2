"""Who plays what and when: the servers take turns within each repetition. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

RAW = "raw"
KEPT = "kept"
"""Kept KV against recomputed, on this project's server alone."""
OURS = ("sessiond", "sessiond-kernels")


@dataclass(frozen=True, slots=True)
class Entry:
    """A server plays a workload in every `every`-th repetition; 0: when all is asked for."""

    workload: str
    server: str
    every: int = 1


# What takes long, or is not the best setting of its kind, is played less often.
ENTRIES = (
    Entry("W1", "sessiond"),
    Entry("W1", "llama-q4_1"),
    Entry("W1", "llama-q4_0"),
    Entry("W1", "vllm-bf16"),
    Entry("W2", "sessiond"),
    Entry("W2", "llama-q4_1", every=0),
    Entry("W2", "llama-q4_0", every=3),
    Entry("W2", "llama-q4_0-b256"),
    Entry("W2", "vllm-bf16"),
    Entry("W3", "sessiond"),
    Entry("W3", "llama-q4_0", every=3),
    Entry("W3", "llama-q4_0-b256", every=3),
    Entry("W3", "vllm-bf16"),
    Entry("W2-think", "sessiond", every=3),
    Entry("W2-think", "llama-q4_0", every=3),
    Entry("W2-think", "vllm-bf16", every=3),
    Entry("W4", "sessiond", every=3),
    Entry("W4", "llama-q4_0", every=3),
    Entry("W4", "vllm-bf16", every=3),
    Entry(RAW, "sessiond-kernels", every=3),
    Entry(RAW, "sessiond", every=3),
    Entry(RAW, "llama-q4_1", every=3),
    Entry(RAW, "llama-q4_0", every=3),
    Entry(RAW, "vllm-bf16", every=3),
)
PARTS = (*dict.fromkeys(entry.workload for entry in ENTRIES), KEPT)
PEERS = tuple(dict.fromkeys(entry.server for entry in ENTRIES if entry.server not in OURS))


@dataclass(frozen=True, slots=True)
class Play:
    """One server, one workload, once."""

    repetition: int
    workload: str
    server: str

    @property
    def seed(self) -> str:
        """Of its messages: the same for all servers, another one in each repetition."""
        return f"{self.workload}/{self.repetition}"


def schedule(
    repeat: int, workloads: Collection[str], servers: Collection[str], *, thorough: bool = False
) -> list[Play]:
    """All plays in their order.

    `thorough` plays everything in every repetition. The first to play a workload changes from one
    repetition to the next, so that what drifts on the machine meets all.
    """
    plays: list[Play] = []
    for repetition in range(repeat):
        for workload in workloads:
            due = [
                Play(repetition, workload, entry.server)
                for entry in ENTRIES
                if entry.workload == workload
                and entry.server in servers
                and (thorough or (entry.every and repetition % entry.every == 0))
            ]
            shift = repetition % len(due) if due else 0
            plays += due[shift:] + due[:shift]
    return plays
