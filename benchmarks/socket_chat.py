"""A conversation over this project's socket: only the new message is sent."""

import time

from websockets.exceptions import ConnectionClosed

from benchmarks.chat import ChatError
from benchmarks.load_client import LoadClient
from benchmarks.turn_times import TurnTimes
from sessiond.cli.chat_turn import ChatTurn, ReplyText


class SocketChat:
    """One conversation on an open client, which the caller closes."""

    def __init__(self, client: LoadClient) -> None:
        self._client = client

    async def ask(self, text: str, reply_tokens: int) -> TurnTimes:
        """Run one turn.

        Raises:
            ChatError: the server refused it, or the reply has another length.
        """
        sent_at_s = time.perf_counter()
        turn = await self._client.send(text, temperature=0, max_output_tokens=reply_tokens)
        arrivals: list[float] = []
        try:
            while turn.end is None:
                frame = await self._client.socket.recv()
                at_s = time.perf_counter()
                if any(isinstance(part, ReplyText) for part in turn.feed(frame, at_s=at_s)):
                    arrivals.append(at_s)
        except ConnectionClosed as closed:
            raise ChatError(f"the connection was lost: {closed}") from closed
        self._client.tip = turn.end.tip or self._client.tip
        return _times(turn, sent_at_s, arrivals, reply_tokens)


def _times(turn: ChatTurn, sent_at_s: float, arrivals: list[float], reply_tokens: int) -> TurnTimes:
    stats = turn.end.stats if turn.end else None
    if stats is None or not arrivals or stats.output_tokens != reply_tokens:
        raise ChatError(f"{reply_tokens} tokens were asked for; the turn ended as {turn.end}")
    return TurnTimes(
        sent_at_s=sent_at_s,
        text_at_s=tuple(arrivals),
        input_tokens=stats.reused_tokens + stats.recomputed_tokens + stats.new_tokens,
        cached_tokens=stats.reused_tokens,
        output_tokens=stats.output_tokens,
    )
