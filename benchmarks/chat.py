"""What the workloads need of a client: one conversation, whatever the server's protocol."""

from typing import Protocol

from benchmarks.turn_times import TurnTimes


class Chat(Protocol):
    """One conversation. Raises `ChatError` when a turn brings no reply."""

    async def ask(self, text: str, reply_tokens: int) -> TurnTimes:
        """Run one turn, greedy, with a reply of exactly so many tokens."""
        ...


class ChatError(Exception):
    """A turn brought no reply, or another one than was asked for; says why."""
