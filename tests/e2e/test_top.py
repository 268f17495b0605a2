"""`sessiond top` on a terminal, and without one."""

import codecs
import contextlib
import json
import os
import pty
import subprocess
import sys
import threading

import openai
import pytest

from tests.e2e.support import answer_of, wait_until

TOP = [sys.executable, "-m", "sessiond", "top"]


def opened(server):
    """The id of a new session with one turn."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        return client.responses.create(
            model=model, input="hi", max_output_tokens=16
        ).conversation.id


def test_one_look_without_a_terminal(server):
    session = opened(server)
    words = ["--url", server.url]
    page = subprocess.run([*TOP, *words], capture_output=True, text=True, timeout=120, check=True)
    assert "first token" in page.stdout
    assert session in page.stdout
    found = subprocess.run(
        [*TOP, *words, "--json"], capture_output=True, text=True, timeout=120, check=True
    )
    look = json.loads(found.stdout)
    assert session in [each["id"] for each in look["sessions"]]
    assert look["capacity"]["total_blocks"] > 0
    assert any(each["name"] == "sessiond_generated_tokens_total" for each in look["metrics"])


class Terminal:
    """A child on a terminal of its own. What it writes is read all the time: else it would wait."""

    def __init__(self, command):
        self._ours, theirs = pty.openpty()
        self._child = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"},
        )  # fmt: skip
        os.close(theirs)
        self._lock = threading.Lock()
        self._seen = ""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with contextlib.suppress(OSError):  # the child has left
            while said := os.read(self._ours, 65536):
                with self._lock:
                    self._seen += decoder.decode(said)

    def has_said(self, text):
        with self._lock:
            return text in self._seen

    def press_until(self, key, said):
        """Press a key once, then wait for what it leads to."""
        with self._lock:
            self._seen = ""
        os.write(self._ours, key)
        wait_until(lambda: self.has_said(said), what=said)

    def press(self, key):
        os.write(self._ours, key)

    def leave(self):
        os.write(self._ours, b"q")
        return self._child.wait(60)

    def kill(self):
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._reading.join()
        os.close(self._ours)


@pytest.fixture
def terminal(server):
    running = Terminal([*TOP, "--url", server.url, "--interval", "0.2"])
    yield running
    running.kill()


def is_closed(server, session):
    listed = answer_of(server, "/v1/sessions")
    return listed is not None and session not in [each["id"] for each in listed["data"]]


def test_a_session_is_found_looked_at_and_closed(server, terminal):
    session = opened(server)
    wait_until(lambda: terminal.has_said(session), what="the session")
    terminal.press_until(b"/", "search: ")
    terminal.press_until(session.encode(), f"search: {session}")
    terminal.press_until(b"\r", "↑↓ choose")
    terminal.press(b"\x1b[B")
    terminal.press_until(b"i", "policy sliding_window")
    terminal.press_until(b"c", f"close {session}? y")
    terminal.press_until(b"y", "↑↓ choose")
    wait_until(lambda: is_closed(server, session), what="the end of the session")
    assert terminal.leave() == 0
