"""What the end-to-end tests share: waiting, and what a server must be like when nobody talks."""

import itertools
import time
import urllib.error
from dataclasses import dataclass

BLOCK = 16
SYSTEM_PROMPT = 16  # the whole block of the default system prompt, which all chats of a user share


def wait_until(holds, *, within_s=300.0, what="the condition"):
    """Wait for a condition; its last value is returned."""
    deadline_s = time.monotonic() + within_s
    while not (value := holds()):
        assert time.monotonic() < deadline_s, f"{what} did not come within {within_s} s"
        time.sleep(0.02)
    return value


def answer_of(server, path):
    """What is answered; None while the server is too busy to say."""
    try:
        return server.get(path)
    except urllib.error.HTTPError as busy:
        busy.close()
    except OSError:  # it took too long
        pass
    return None


def capacity_of(server):
    """What the pool and the tiers hold; None while the engine is too busy with a step to say."""
    return answer_of(server, "/health/capacity")


def held_blocks(server):
    """Blocks that sessions hold, as soon as the engine says so."""
    while (found := capacity_of(server)) is None:
        pass
    return found["active_blocks"]


def is_idle(server):
    """Whether no turn is there and no block is held, by one look: moves to disk hold some, too."""
    found = capacity_of(server)
    names = ("active_blocks", "running", "waiting")
    return found is not None and not any(found[name] for name in names)


def assert_all_blocks_come_back(server, *, within_s=300.0):
    """No session holds a block any more, nothing leaked, the auditor agrees."""
    wait_until(lambda: is_idle(server), within_s=within_s, what="the last block")
    audit = server.get("/admin/memory")
    assert (audit["ok"], audit["violations"]) == (True, [])


def total_input(turn):
    """All tokens before the reply of a finished turn of `LoadClient`."""
    stats = turn.end.stats
    known = stats.reused_tokens + stats.restored_tokens + stats.recomputed_tokens
    return known + stats.new_tokens


def total(turn):
    """All tokens of the conversation up to a finished turn's end."""
    return total_input(turn) + turn.end.stats.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One turn of a chat with its numbers, whichever client held it."""

    response_id: str
    text: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, response, text):
        """From a response object as JSON."""
        usage = response["usage"]
        return cls(
            response_id=response["id"],
            text=text,
            input_tokens=usage["input_tokens"],
            cached_tokens=usage["input_tokens_details"]["cached_tokens"],
            output_tokens=usage["output_tokens"],
        )


def assert_only_new_tokens_cost(turns):
    """From turn 2 on, every earlier token is reused to within one block."""
    assert turns[0].cached_tokens <= SYSTEM_PROMPT
    for before, after in itertools.pairwise(turns):
        earlier = before.input_tokens + before.output_tokens
        assert earlier - BLOCK <= after.cached_tokens <= earlier + BLOCK, (before, after)
        assert after.cached_tokens < after.input_tokens
