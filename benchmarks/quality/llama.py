"""llama.cpp's tools on the same ids: `llama-perplexity` for distances, `llama-server` for replies.

The reference's log-probabilities go to `llama-perplexity --kl-divergence` in the file that it reads
(tools/perplexity/perplexity.cpp: magic, sizes, tokens, rows), so it measures its distance from our
float32 reference, not from its own.
"""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.measures import Quality, Words
from benchmarks.quality.texts import WINDOW, Ids

_READY_S = 60.0
_THREADS = "1"  # threads that spin for each other crawl on a busy machine; nothing is timed here


def write_base(path: Path, windows: Ids, vocab: int, rows: Iterable[Words]) -> None:
    """Write the file that `--kl-divergence-base` names; `rows` come window by window."""
    with path.open("wb") as file:
        file.write(b"_logits_")
        file.write(np.array([WINDOW, vocab, len(windows)], dtype=np.int32).tobytes())
        file.write(windows.tobytes())
        for part in rows:
            file.write(part.tobytes())


def rows_start(windows: Ids) -> int:
    """Bytes before the first row in such a file."""
    return 8 + 3 * 4 + windows.nbytes


def measure_distances(folder: Path, model: Path, base: Path) -> Quality:
    """Run `llama-perplexity` over the windows in `base`.

    Raises:
        RuntimeError: it failed; the message has the end of what it printed.
    """
    size = str(WINDOW)
    command = [str(folder / "llama-perplexity"), "-m", str(model), "--kl-divergence"]
    options = ["--kl-divergence-base", str(base), "-c", size, "-b", size, "-t", _THREADS]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)  # noqa: S603 -- the user's own path
    printed = done.stdout + done.stderr
    found = {
        name: re.search(rf"{pattern}\s*:\s*([\d.]+) ±\s*([\d.]+)", printed)
        for name, pattern in (
            ("ppl", r"Mean PPL\(Q\)"),
            ("kl", "Mean    KLD"),
            ("top", "Same top p"),
        )
    }
    ppl, kl, top = found["ppl"], found["kl"], found["top"]
    if done.returncode or ppl is None or kl is None or top is None:
        raise RuntimeError(f"llama-perplexity: {printed[-2000:]}")
    return Quality(
        divergence=float(kl[1]),
        divergence_error=float(kl[2]),
        same_top=float(top[1]) / 100,
        perplexity=float(ppl[1]),
    )


def replies(
    folder: Path, model: Path, prompts: Sequence[Sequence[int]], stop_id: int, longest: int
) -> list[list[int]]:
    """Reply to each prompt of ids, greedily; `stop_id` stands for the end that it leaves out."""
    with _server(folder, model) as url:
        answers = [
            _post(
                f"{url}/completion",
                {
                    "prompt": list(prompt),
                    "n_predict": longest,
                    "temperature": 0,
                    "samplers": ["temperature"],
                    "cache_prompt": True,
                    "return_tokens": True,
                },
            )
            for prompt in prompts
        ]
    return [
        [*answer["tokens"], *([stop_id] if answer["stop_type"] == "eos" else [])]
        for answer in answers
    ]


@contextmanager
def _server(folder: Path, model: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(folder / "llama-server"), "-m", str(model), "-c", "4096", "-np", "1"]
    options = ["-t", _THREADS, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(  # noqa: S603 -- the user's own path
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _READY_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with _OPENER.open(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("llama-server did not come up")


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310 -- http on loopback
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with _OPENER.open(request, timeout=300) as answer:
        result: dict[str, Any] = json.load(answer)
    return result
