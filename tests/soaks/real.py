"""The soak of a server with the default model, in processes of its own."""

import random

from benchmarks.server_process import running_server
from tests.e2e.support import wait_until
from tests.soaks.clients import Client, Counts, talk
from tests.soaks.curve import Curve, Sample

_TURNS_EACH = 20  # between two looks, each of which waits until replays have been forgotten
_AT_ONCE = 3
_FLAGS = (
    # a pool that is soon used whole, and few things that are kept for those that return
    *("--kv-cache-memory", "48MiB", "--http-hold-s", "1", "--replay-ttl-s", "1"),
    *("--disk-tier-size", "0", "--host-tier-size", "8MiB", "--max-num-seqs", "4"),
)


async def soak_server(folder, turns, seed):
    """Curves of the engine's process, less what of the pool is committed, and the gateway's."""
    engine, gateway = Curve("engine, default model"), Curve("gateway, default model")
    counts = Counts(turns)
    dice = random.Random(seed)
    with running_server(folder, _FLAGS) as server:
        socket = server.url.replace("http", "ws", 1) + "/v1/responses"
        users = [
            Client(socket, counts, random.Random(dice.random()), max_output_tokens=8)
            for _ in range(_AT_ONCE)
        ]
        for until in range(_TURNS_EACH, turns + 1, _TURNS_EACH):
            await talk(users, until)
            report = _at_rest(server)
            _add(engine, until, report, report["engine"], report["engine"]["kv_committed_bytes"])
            _add(gateway, until, report, report["gateway"], 0)
    return engine, gateway, counts


def _at_rest(server):
    """The report once no block is held, be it by a move to the host tier, and nothing is kept."""

    def report():
        found = server.get("/admin/memory")
        assert found["violations"] == []
        gateway = found["gateway"]
        busy = (found["active_blocks"], gateway["replays"], gateway["sockets"], gateway["turns"])
        return not any(busy) and found

    return wait_until(report, within_s=60, what="rest")


def _add(curve, turns, report, process, pool_bytes):
    curve.samples.append(
        Sample(
            turns=turns,
            rss_bytes=process["rss_bytes"] - pool_bytes,
            files=process["files"],
            tasks=process.get("tasks", 0),
            free_blocks=report["free_blocks"] + report["cached_blocks"],
            active_blocks=report["active_blocks"],
            contexts=report["sessions"]["live"],
            host_bytes=report["host_bytes"],
        )
    )
