import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
import typer
from typer.testing import CliRunner

from sessiond.cli.chat import chat
from tests.cli.scripted_server import Play, ScriptedServer, reply

MODELS = {("GET", "/v1/models"): (200, {"data": [{"id": "tiny"}]})}
SESSION = {"id": "conv_1", "state": "idle", "tokens_total": 15, "turns": []}
INSPECT = {("GET", "/v1/sessions/conv_1"): (200, SESSION)}


def run(server, *arguments, piped=""):
    app = typer.Typer()
    app.command()(chat)
    return CliRunner().invoke(app, ["--url", server.url, *arguments], input=piped)


def test_once_prints_the_reply_alone_and_leaves_with_0():
    with ScriptedServer([Play(frames=reply("hello there"))]).running() as server:
        result = run(server, "--once", "hi", "--system", "be brief", "--temperature", "0")
    assert (result.exit_code, result.stdout) == (0, "hello there\n")
    assert "new 10" in result.stderr
    assert server.creates[0] == {
        "type": "response.create",
        "input": "hi",
        "instructions": "be brief",
        "temperature": 0.0,
    }


def test_piped_lines_are_one_conversation():
    plays = [Play(frames=reply("one")), Play(frames=reply("two"))]
    with ScriptedServer(plays).running() as server:
        result = run(server, piped="first\n\n  \nsecond\n")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
    assert server.creates[1]["previous_response_id"] == "resp_1"


def test_a_failed_turn_in_a_script_leaves_with_1_after_the_rest():
    failed = reply("", status="failed", error={"code": "internal_error", "message": "broken"})
    with ScriptedServer([Play(frames=failed), Play(frames=reply("two"))]).running() as server:
        result = run(server, piped="first\nsecond\n")
    assert (result.exit_code, result.stdout) == (1, "two\n")
    assert "internal_error" in result.stderr


def test_slash_commands_work_and_are_not_sent():
    with ScriptedServer([Play(frames=reply("one"))], INSPECT).running() as server:
        result = run(server, piped="/inspect\nhello\n/inspect\n/help\n/cancel\n/quit\nnever\n")
    assert "There is no conversation yet" in result.stderr
    assert "conv_1 · idle" in result.stderr
    assert "empty the conversation" in result.stderr
    assert "No reply is streaming" in result.stderr
    assert [message["input"] for message in server.creates] == ["hello"]


def test_an_unknown_command_is_explained_and_a_leading_space_sends_it():
    with ScriptedServer([Play(frames=reply("one"))]).running() as server:
        result = run(server, piped="/split\n /etc/hosts is a file\n")
    assert "A command must be one of /cancel, /fork, /inspect, /policy, /reset" in result.stderr
    assert [message["input"] for message in server.creates] == [" /etc/hosts is a file"]


def test_reset_of_a_forgotten_conversation_opens_a_new_one():
    plays = [Play(frames=reply("one")), Play(frames=reply("two"))]
    with ScriptedServer(plays).running() as server:  # answers 404 to the reset
        result = run(server, piped="first\n/reset\nsecond\n")
    assert result.exit_code == 0
    assert not {"previous_response_id", "conversation"} & set(server.creates[1])


def test_a_conversation_that_is_not_there_is_an_error():
    with ScriptedServer([]).running() as server:
        result = run(server, "--conversation", "conv_gone", piped="hi\n")
    assert result.exit_code == 1
    assert "404" in result.stderr


def test_no_server_says_so_and_leaves_with_1():
    with ScriptedServer([]).running() as server:
        pass
    result = run(server, "--once", "hi")
    assert result.exit_code == 1
    assert f"no server answers at {server.url}" in result.stderr
    assert "sessiond serve" in result.stderr


def test_a_bad_url_is_wrong_usage():
    app = typer.Typer()
    app.command()(chat)
    assert CliRunner().invoke(app, ["--url", "nonsense"]).exit_code == 2


def test_u02_bytes_that_are_not_utf8_in_a_pipe_are_one_line_and_exit_1():
    with ScriptedServer([Play(frames=reply("one"))]).running() as server:
        result = run(server, piped=b"first\ncaf\xe9\nthird\n")
    assert (result.exit_code, result.stdout) == (1, "one\n")
    assert "sessiond: standard input must be UTF-8 (got byte 0xe9 in line 2)" in result.stderr
    assert "Traceback" not in result.stderr
    assert inputs(server) == ["first"]


@pytest.mark.parametrize("option", ["--once", "--system", "--conversation", "--url"])
def test_u02_options_that_are_not_utf8_are_one_line_and_exit_1(option):
    with ScriptedServer([]).running() as server:
        result = run(server, option, os.fsdecode(b"caf\xe9"), piped="hi\n")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert f"sessiond: {option} must be UTF-8 (got byte 0xe9)" in result.stderr


def test_u02_a_byte_order_mark_is_no_part_of_a_line():
    with ScriptedServer([Play(frames=reply("one"))]).running() as server:
        result = run(server, piped=b"\xef\xbb\xbf/help\r\nhello\r\n")
    assert "empty the conversation" in result.stderr
    assert inputs(server) == ["hello"]


def test_u02_a_paste_that_is_not_utf8_has_a_replacement_with_a_notice(terminal):
    with ScriptedServer([Play(frames=reply("one"))], MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("> ")
        screen.press(b"\x1b[200~caf\xe9s\x1b[201~\r")
        screen.wait_for("tokens/s]")
    assert inputs(server) == ["caf\ufffds"]
    assert "not UTF-8 was replaced" in screen.shown


def inputs(server):
    return [message["input"] for message in server.creates]


class Terminal:
    """The chat in a process of its own behind a pseudo terminal."""

    def __init__(self, url, **environment):
        main = (
            "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"  # so that Ctrl-C signals
            # what runs the tests may ignore Ctrl-C itself, as a job in the background does
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
            "import typer; from sessiond.cli.chat import chat; typer.run(chat)"
        )
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", main, "--url", url],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "xterm-256color"} | environment,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def type(self, keys):
        self.press(keys.encode())

    def press(self, keys):
        os.write(self._master, keys)

    def paste(self, text):
        """Like a terminal: marked only if the program has asked for that."""
        keys = text.replace("\n", "\r")
        marks = self.shown.rfind("\x1b[?2004h") > self.shown.rfind("\x1b[?2004l")
        self.type(f"\x1b[200~{keys}\x1b[201~" if marks else keys)

    def wait_for(self, text, limit_s=60.0, times=1):
        deadline = time.monotonic() + limit_s
        while self.shown.count(text) < times:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{text!r} never came: {self.shown!r}"
            if select.select([self._master], [], [], left_s)[0]:
                self.shown += os.read(self._master, 4096).decode(errors="replace")

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def start(url, **environment):
        opened.append(Terminal(url, XDG_CONFIG_HOME=str(tmp_path), **environment))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


CUT = reply("counting one", response_id="resp_c", status="incomplete")


@pytest.mark.parametrize("keys", ["\x03", "/cancel\n"])
def test_ctrl_c_or_a_typed_cancel_cancels_the_reply_and_the_chat_goes_on(terminal, keys):
    cut = [*CUT[:-1]]
    plays = [Play(frames=cut, after_cancel=CUT[-1:]), Play(frames=reply("fresh"))]
    with ScriptedServer(plays, MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("Chat with tiny")
        screen.type("count\n")
        screen.wait_for("counting one")
        screen.type(keys)
        screen.wait_for("reply 5 tokens")
        screen.type("again\n")
        screen.wait_for("fresh")
        screen.type("/quit\n")
        assert screen.process.wait(timeout=60) == 0
    assert server.creates[1]["previous_response_id"] == "resp_c"


def test_a_second_ctrl_c_leaves_a_server_that_does_not_react(terminal):
    with ScriptedServer([Play(frames=CUT[:-1])], MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("Chat with tiny")
        screen.type("count\n")
        screen.wait_for("counting one")
        screen.type("\x03")
        while not any(message["type"] == "response.cancel" for message in server.received):
            assert screen.process.poll() is None
        screen.type("\x03")
        assert screen.process.wait(timeout=60) == 130


def test_a_line_typed_while_a_reply_streams_is_the_next_message(terminal):
    plays = [Play(frames=CUT[:-1], after_cancel=CUT[-1:]), Play(frames=reply("fresh"))]
    with ScriptedServer(plays, MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("Chat with tiny")
        screen.type("count\n")
        screen.wait_for("counting one")
        screen.type("typed ahead\n/cancel\n")
        screen.wait_for("fresh")
    assert [message["input"] for message in server.creates] == ["count", "typed ahead"]


def test_no_colour_is_honoured(terminal):
    with ScriptedServer([Play(frames=reply("hello"))], MODELS).running() as server:
        screen = terminal(server.url, NO_COLOR="1")
        screen.wait_for("Chat with tiny")
        screen.type("hi\n")
        screen.wait_for("tokens/s")
    assert "\x1b[3" not in screen.shown  # no colour; attributes such as dim may stay


def test_ctrl_c_at_the_prompt_clears_the_line_and_a_second_one_leaves(terminal):
    with ScriptedServer([Play(frames=reply("fresh"))], MODELS).running() as server:
        screen = terminal(server.url)
        interrupt_line(screen, "half typed", 1, "(Ctrl-C again leaves)")
        screen.type("hello\n")
        screen.wait_for("tokens/s]")
        interrupt_line(screen, "not yet", 3, "(Ctrl-C again leaves)", times=2)
        interrupt_line(screen, "going", 4, "To continue this conversation: --conversation conv_1")
        assert screen.process.wait(timeout=60) == 130
    assert [message["input"] for message in server.creates] == ["hello"]


def test_ctrl_c_right_at_the_prompt_is_seen_without_another_key(terminal):
    """Keys sent with the prompt's last byte come before `readline` waits for one."""
    with ScriptedServer([Play(frames=reply("fresh"))], MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("> ")
        screen.type("\x03")
        screen.wait_for("(Ctrl-C again leaves)")
        screen.wait_for("> ", times=2)
        screen.type("\x03")
        assert screen.process.wait(timeout=60) == 130


def interrupt_line(screen, text, prompts, answer, times=1):
    """Press Ctrl-C once what was typed is on the screen, and wait for the answer."""
    screen.wait_for("> ", times=prompts)
    screen.type(text)
    screen.wait_for(text)
    screen.type("\x03")
    screen.wait_for(answer, times=times)


def test_ctrl_d_leaves(terminal):
    with ScriptedServer([], MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("> ")  # typed before the prompt it would be the terminal's, not the chat's
        screen.type("\x04")
        assert screen.process.wait(timeout=60) == 0


PASTE = "def add(a, b):\n\n    return a + b\n\nwhat is this?"


def test_u01_a_pasted_text_of_five_lines_is_one_message(terminal):
    with ScriptedServer([Play(frames=reply("one"))], MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("> ")
        screen.paste(PASTE)
        screen.wait_for("what is this?")
        screen.type("\r")
        screen.wait_for("tokens/s]")
    assert inputs(server) == [PASTE]


def test_u01_what_is_typed_and_pasted_during_a_reply_waits_whole_and_unseen(terminal):
    plays = [
        Play(frames=CUT[:-1], after_cancel=CUT[-1:]),
        Play(frames=reply("two")),
        Play(frames=reply("three")),
    ]
    with ScriptedServer(plays, MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("> ")
        screen.type("count\r")
        screen.wait_for("counting")
        shown = len(screen.shown)
        screen.paste(PASTE)
        screen.type("\r/cancel\rhalf a wo")
        screen.wait_for("half a wo")
        assert "def add" not in screen.shown[shown : screen.shown.index("reply 5 tokens")]
        screen.type("rd\r")
        screen.wait_for("three")
    assert inputs(server) == ["count", PASTE, "half a word"]


def test_u01_alt_enter_begins_a_new_line(terminal):
    with ScriptedServer([Play(frames=reply("one"))], MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("> ")
        screen.type("first\x1b\rsecond\r")
        screen.wait_for("tokens/s]")
    assert inputs(server) == ["first\nsecond"]


def test_u01_history_stays_between_starts_for_the_user_alone(terminal, tmp_path):
    plays = [Play(frames=reply("one")), Play(frames=reply("two"))]
    with ScriptedServer(plays, MODELS).running() as server:
        first = terminal(server.url)
        first.wait_for("> ")
        first.paste(PASTE)
        first.type("\r")
        first.wait_for("tokens/s]")
        first.type("/quit\r")
        assert first.process.wait(timeout=60) == 0
        second = terminal(server.url)
        second.wait_for("> ")
        second.type("\x1b[A\x1b[A")
        second.wait_for("what is this?")
        second.type(" Say.\r")
        second.wait_for("tokens/s]")
    assert inputs(server) == [PASTE, f"{PASTE} Say."]
    history = tmp_path / "sessiond" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600


def test_u01_tab_completes_a_command(terminal):
    with ScriptedServer([], MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("> ")
        screen.type("/qu\t\r")
        assert screen.process.wait(timeout=60) == 0


def test_u01_a_pasted_path_and_more_is_no_command(terminal):
    with ScriptedServer([Play(frames=reply("one"))], MODELS).running() as server:
        screen = terminal(server.url)
        screen.wait_for("> ")
        screen.paste("/etc/hosts\nis what?")
        screen.type("\r")
        screen.wait_for("tokens/s]")
    assert inputs(server) == ["/etc/hosts\nis what?"]
