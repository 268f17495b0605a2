"""`python -m benchmarks.console`: the console with many sessions, measured in a real browser.

Starts a server of the default model, opens sessions on it, each with a short prompt prefilled, and
looks at `/console` with Chromium: the time to the first row of the table and to the last, what a
frame takes while the table is scrolled from end to end, what a search takes, the script's heap, and
the work of the page while nobody touches it. `--picture FILE` holds a few real conversations
instead and takes the picture of the README.
"""

import json
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

from benchmarks.browser import NAMES, find_browser
from benchmarks.machine import describe_machine
from benchmarks.server_process import ServerProcess, running_server
from benchmarks.texts import QUESTIONS, prose

_RESULTS = Path(__file__).parent / "results"
_HELD = ("--http-hold-s", "3600")
_CLIENTS = 4
_WIDE = ViewportSize(width=1280, height=900)
_PICTURE = ViewportSize(width=1440, height=1500)
_TALK = ("What is the sea?", "Why is it salty?", "Is it deep?", "Who sails on it?", "And why?")
_PATIENCE_MS = 300_000
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# When the first row was painted: two frames after it came.
_WATCH = """
window.seen = {};
new MutationObserver(() => {
  if (window.seen.row || !document.querySelector("#session-table tr[data-key]")) return;
  window.seen.row = true;
  const painted = () => { window.seen.firstMs = performance.now(); };
  requestAnimationFrame(() => requestAnimationFrame(painted));
}).observe(document, { childList: true, subtree: true });
new PerformanceObserver((list) => {
  const took = list.getEntries().map((one) => one.duration);
  window.seen.tasks = [...(window.seen.tasks ?? []), ...took];
}).observe({ type: "longtask", buffered: true });
"""
_SCROLL = """(frames) => new Promise((resolve) => {
  const view = document.querySelector("#session-viewport");
  const most = view.scrollHeight - view.clientHeight;
  const took = [];
  let before = performance.now();
  const step = () => {
    const now = performance.now();
    took.push(now - before);
    before = now;
    if (took.length > frames) return resolve(took.slice(1));
    view.scrollTop = (most * took.length) / frames;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""
_SEARCH = """(text) => {
  const input = document.querySelector("#session-search");
  const begun = performance.now();
  input.value = text;
  input.dispatchEvent(new Event("input"));
  document.body.offsetHeight;
  return performance.now() - begun;
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the browser measured. Frames of a display of 60 Hz are 16.7 ms apart."""

    sessions: int
    first_row_ms: float
    all_rows_ms: float
    rows_in_page: int
    frame_p50_ms: float
    frame_p95_ms: float
    frame_max_ms: float
    search_ms: float
    heap_mib: float
    busy_share: float
    longest_task_ms: float
    pool_answer_ms: float
    pool_answer_kib: float


def main(
    *,
    sessions: Annotated[int, typer.Option(min=1, help="How many there are.")] = 5000,
    picture: Annotated[Path | None, typer.Option(help="Take a picture instead.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    """Measure, print the figures and write them as JSON; or take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        if picture is not None:
            take_picture(Path(folder), picture)
            return
        with running_server(Path(folder), _HELD) as server:
            open_sessions(server, sessions)
            figures = measure(server, sessions)
    print(describe_machine())
    for name, value in asdict(figures).items():
        print(f"{name:18} {value:,.1f}" if isinstance(value, float) else f"{name:18} {value:,}")
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = output or _RESULTS / f"console-{stamp}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": describe_machine(), **asdict(figures)}, indent=2) + "\n")
    print(f"Written to {path}")


def open_sessions(server: ServerProcess, count: int) -> None:
    """Open sessions whose prompt is computed and held."""

    def open_one(number: int) -> None:
        post(server, "/v1/responses", {"input": f"Session {number}.", "generate": False})

    with ThreadPoolExecutor(_CLIENTS) as clients:
        for _ in clients.map(open_one, range(count)):
            pass


@contextmanager
def page_of(server: ServerProcess, viewport: ViewportSize, **options: Any) -> Iterator[Page]:
    """A page of the server's console, in a browser of its own.

    Raises:
        RuntimeError: there is no browser.
    """
    command = find_browser()
    if command is None:
        raise RuntimeError(f"no Chromium on the path: one of {', '.join(NAMES)} is needed")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=command)
        page = browser.new_page(viewport=viewport, **options)
        page.set_default_timeout(_PATIENCE_MS)
        page.add_init_script(_WATCH)
        page.goto(f"{server.url}/console")
        yield page
        browser.close()


def measure(server: ServerProcess, count: int) -> Figures:
    """Look at the console of a server that has so many sessions."""
    with page_of(server, _WIDE) as page:
        page.locator("#session-table tr[data-key]").first.wait_for()
        page.get_by_text(f"{count:,}", exact=True).and_(page.locator("#sessions-count")).wait_for()
        all_rows_ms = page.evaluate("performance.now()")
        first_row_ms = page.evaluate("window.seen.firstMs")
        frames = sorted(page.evaluate(_SCROLL, 240))
        rows = page.locator("#session-table tr[data-key]").count()
        search_ms = page.evaluate(_SEARCH, "conv_a")
        page.evaluate(_SEARCH, "")
        page.evaluate("window.seen.tasks = []")
        page.wait_for_timeout(10_000)  # what is measured is the time in which nothing is done
        tasks = page.evaluate("window.seen.tasks")
        return Figures(
            sessions=count,
            first_row_ms=first_row_ms,
            all_rows_ms=all_rows_ms,
            rows_in_page=rows,
            frame_p50_ms=_at(frames, 0.5),
            frame_p95_ms=_at(frames, 0.95),
            frame_max_ms=frames[-1],
            search_ms=search_ms,
            heap_mib=_heap_mib(page),
            busy_share=sum(tasks) / 10_000,
            longest_task_ms=max(tasks, default=0.0),
            **_pool_answer(server),
        )


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _heap_mib(page: Page) -> float:
    tools = page.context.new_cdp_session(page)
    tools.send("HeapProfiler.enable")
    tools.send("HeapProfiler.collectGarbage")
    used: float = tools.send("Runtime.getHeapUsage")["usedSize"]
    return used / 2**20


def _pool_answer(server: ServerProcess) -> dict[str, float]:
    begun = time.perf_counter()
    text = server.get_text("/admin/pool")
    passed_ms = (time.perf_counter() - begun) * 1000
    return {"pool_answer_ms": passed_ms, "pool_answer_kib": len(text) / 1024}


def take_picture(folder: Path, path: Path) -> None:
    """Hold some conversations, one of them in the console's chat, and take its picture."""
    flags = (*_HELD, "--kv-cache-memory", "200MiB", "--host-tier-size", "48MiB")
    with running_server(folder, flags) as server, page_of(server, _PICTURE) as page:
        others = threading.Thread(target=_converse, args=(server, 3, 12))
        others.start()
        page.locator("#chat-limit").evaluate("e => { e.value = 90; }")
        page.locator("#chat-temperature").evaluate("e => { e.value = 0; }")
        page.locator("#chat-instructions").evaluate("e => { e.value = 'Answer in one sentence.'; }")
        for text in _TALK:
            page.locator("#chat-input").fill(text)
            page.locator("#chat-input").press("Enter")
            page.locator("#chat-send:not(:disabled)").wait_for()
        others.join()
        again = threading.Thread(target=_converse, args=(server, 2, 4))
        again.start()
        page.locator("#chat-session button").click()
        page.locator("#session .facts dt").first.wait_for()
        page.get_by_role("button", name="Leave the session").click()
        page.locator('label:has(input[value="session"])').click()
        page.evaluate("window.scrollTo(0, 0)")
        page.wait_for_timeout(5_000)  # a few samples more of the charts
        _write_picture(page.screenshot(), path)
        again.join()
    print(f"Written to {path}: {path.stat().st_size / 1024:.0f} KB")


def _write_picture(png: bytes, path: Path) -> None:
    """In 256 colours, of which the page has fewer but for the edges of its letters."""
    picture = Image.open(BytesIO(png)).convert("RGB")
    method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    picture.quantize(256, method=method, dither=dither).save(path, optimize=True)


def _converse(server: ServerProcess, clients: int, conversations: int) -> None:
    def talk(number: int) -> None:
        before: dict[str, Any] = {}
        for turn in range(2 + number % 4):
            text = f"{prose(40 + 25 * (number % 5))} {QUESTIONS[(number + turn) % len(QUESTIONS)]}"
            body = {"input": text, "max_output_tokens": 48, "instructions": "Answer briefly."}
            last = post(server, "/v1/responses", body | before)
            before = {"previous_response_id": last["id"]}

    with ThreadPoolExecutor(clients) as people:
        for _ in people.map(talk, range(conversations)):
            pass


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a POST request."""
    request = urllib.request.Request(  # noqa: S310 -- our own server
        server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with _DIRECT.open(request, timeout=300) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


if __name__ == "__main__":
    typer.run(main)
