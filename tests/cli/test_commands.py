"""`sessiond session`, `doctor` and `db`, against a server that answers from a table."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli
from sessiond.cli.server_api import ServerAddress, ServerApi, ServerError

SESSION = {
    "id": "conv_1",
    "state": "idle",
    "tokens_total": 120,
    "tokens_kept": 96,
    "kv_bytes": {"device": 4 * 2**20, "host": 0, "disk": 0},
    "last_active_at": 1_700_000_000,
    "turns": [
        {
            "response_id": "resp_1",
            "role": "assistant",
            "start": 0,
            "tokens": 120,
            "kept": True,
            "status": "completed",
        }
    ],
}
CAPACITY_TIMES = ("--stage-s", "--time-scale", "--ttft-limit-ms")
SOUND = {"ok": True, "violations": [], "free_blocks": 7, "rss_bytes": 2**20}


@contextmanager
def server(answers: dict[str, tuple[int, object]]):
    """Answers `"METHOD path"` from a table, 404 beside it; yields its URL and what was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            asked.append(f"{self.command} {self.path}")
            missing = (404, {"error": {"message": "no such session"}})
            status, body = answers.get(asked[-1], missing)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 -- the base class's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the same
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}", asked
        finally:
            http.shutdown()
            thread.join()


def run(*arguments: str):
    return CliRunner().invoke(build_cli(), arguments)


def test_session_list_shows_every_page():
    pages = {
        "GET /v1/sessions?limit=100": (
            200,
            {"data": [SESSION], "has_more": True, "last_id": "conv_1"},
        ),
        "GET /v1/sessions?limit=100&after=conv_1": (
            200,
            {"data": [{**SESSION, "id": "conv_2"}], "has_more": False},
        ),
    }
    with server(pages) as (url, _):
        shown = run("session", "list", "--url", url)
        as_json = run("session", "list", "--url", url, "--json")
    assert shown.exit_code == 0
    assert "conv_1" in shown.output
    assert "conv_2" in shown.output
    assert "4.0 MiB" in shown.output
    assert " d ago" in shown.output
    assert [session["id"] for session in json.loads(as_json.output)] == ["conv_1", "conv_2"]


def test_session_list_without_sessions_says_so():
    with server({"GET /v1/sessions?limit=100": (200, {"data": []})}) as (url, _):
        assert run("session", "list", "--url", url).output == "no open sessions\n"
        assert json.loads(run("session", "list", "--url", url, "--json").output) == []


@pytest.mark.parametrize(("status", "seen"), [(200, "everybody's"), (403, "own"), (500, None)])
def test_the_latest_sessions_are_everybodys_for_an_admin_and_else_the_callers(status, seen):
    pages = {
        "GET /v1/sessions?limit=100&user=%2A": (status, {"data": [{"id": "everybody's"}]}),
        "GET /v1/sessions?limit=100": (200, {"data": [{"id": "own"}]}),
    }
    with server(pages) as (url, _):
        api = ServerApi(ServerAddress.parse(url))
        if seen is None:
            with pytest.raises(ServerError):
                api.latest_sessions(5)
        else:
            assert [one["id"] for one in api.latest_sessions(5)] == [seen]


def test_session_list_asks_for_a_state_and_a_user_on_every_page():
    pages = {
        "GET /v1/sessions?limit=100&state=idle&user=%2A": (
            200,
            {"data": [SESSION], "has_more": True, "last_id": "conv_1"},
        ),
        "GET /v1/sessions?limit=100&state=idle&user=%2A&after=conv_1": (200, {"data": []}),
    }
    with server(pages) as (url, _):
        words = ["session", "list", "--url", url, "--state", "idle", "--user", "*", "--json"]
        shown = run(*words)
    assert [session["id"] for session in json.loads(shown.output)] == ["conv_1"]


def test_session_show_lists_its_turns():
    with server({"GET /v1/sessions/conv_1?limit=100": (200, SESSION)}) as (url, _):
        shown = run("session", "show", "conv_1", "--url", url)
        as_json = run("session", "show", "conv_1", "--url", url, "--json")
    assert "conv_1  idle, 120 tokens, 96 of them kept (4.0 MiB)" in shown.output
    assert "resp_1" in shown.output
    assert json.loads(as_json.output) == SESSION


def test_session_reset_and_close_ask_the_server():
    answers = {
        "POST /v1/sessions/conv_1/reset": (200, SESSION),
        "DELETE /v1/sessions/conv_1": (200, {"id": "conv_1", "deleted": True}),
    }
    with server(answers) as (url, asked):
        reset = run("session", "reset", "conv_1", "--url", url)
        close = run("session", "close", "conv_1", "--url", url)
    assert asked == list(answers)
    assert (reset.exit_code, close.exit_code) == (0, 0)


def test_a_refusal_of_the_server_is_exit_code_1_in_its_words():
    with server({}) as (url, _):
        result = run("session", "show", "conv_x", "--url", url)
    assert result.exit_code == 1
    assert "no such session" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["session", "show", "caf\udce9"],
        ["session", "close", "caf\udce9"],
        ["session", "list", "--state", "caf\udce9"],
        ["session", "list", "--user", "caf\udce9"],
        ["user", "quota", "caf\udce9"],
    ],
)
def test_u02_words_that_are_not_utf8_are_one_line_and_exit_1(words):
    with server({}) as (url, asked):
        result = run(*words, "--url", url)
    assert (result.exit_code, asked) == (1, [])
    assert "must be UTF-8 (got byte 0xe9)" in result.output
    assert result.output.count("\n") == 1


def test_u02_a_reply_that_the_locale_cannot_show_is_no_fault():
    program = "import sys; from sessiond.__main__ import main; sys.argv[1:] = ['--help']\n"
    program += "try: main()\nexcept SystemExit: print('\\u4f60')"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert result.stdout.endswith(b"?\n")


def test_no_server_is_exit_code_1_with_a_hint():
    result = run("session", "list", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "Is it running? `sessiond serve`" in result.output


def test_a_bad_url_is_wrong_usage():
    assert run("session", "list", "--url", "nowhere").exit_code == 2


@pytest.mark.parametrize("command", [["session", "list"], ["chat", "--once", "hi"]])
def test_https_where_none_is_spoken_is_not_told_as_no_server(command):
    with server({}) as (url, _):
        result = run(*command, "--url", url.replace("http:", "https:"))
    assert result.exit_code == 1
    assert "no trusted TLS connection to https://127.0.0.1" in result.output
    assert "plain http://" in result.output


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-a b", "ключ"])
@pytest.mark.parametrize("command", [["session", "list"], ["chat", "--once", "hi"], ["doctor"]])
def test_a_key_that_no_header_can_carry_is_told_and_not_shown(monkeypatch, command, key):
    monkeypatch.setenv("SESSIOND_API_KEY", key)
    result = run(*command, "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "--api-key" in result.output
    assert key not in result.output


@pytest.mark.parametrize("value", ["inf", "1e99", "nan"])
@pytest.mark.parametrize(
    "words",
    [["doctor", "--over"], ["top", "--interval"], *(["capacity", flag] for flag in CAPACITY_TIMES)],
)
def test_times_that_no_clock_can_wait_for_are_wrong_usage(words, value):
    result = run(*words, value, "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert words[-1] in result.output


def test_the_url_can_come_from_the_environment(monkeypatch):
    with server({"GET /v1/sessions?limit=100": (200, {"data": []})}) as (url, _):
        monkeypatch.setenv("SESSIOND_URL", url)
        assert run("session", "list").exit_code == 0


@pytest.mark.parametrize(
    ("report", "code", "words"),
    [
        (SOUND, 0, "memory accounting is consistent"),
        (
            {**SOUND, "ok": False, "violations": ["block 7 [x]: 1 reference, 2 counted"]},
            1,
            "block 7 [x]: 1 reference, 2 counted",
        ),
    ],
)
def test_doctor_tells_what_the_audit_found(report, code, words):
    with server({"GET /admin/memory": (200, report)}) as (url, _):
        shown = run("doctor", "--url", url)
        as_json = run("doctor", "--url", url, "--json")
    assert (shown.exit_code, as_json.exit_code) == (code, code)
    assert words in shown.output
    assert json.loads(as_json.output) == report | {"findings": [], "rises": []}


def test_doctor_shows_the_tiers_and_why_one_is_missing():
    disk = {"name": "disk", "bytes": 2**31, "blocks": 5884}
    tiers = [
        disk | {"read_bytes_per_s": 2**31, "write_bytes_per_s": 2**30},
        disk | {"read_bytes_per_s": 2**31, "write_bytes_per_s": 0},
        {"name": "host", "bytes": 2**20, "reason": "no memory"},
    ]
    with server({"GET /admin/memory": (200, SOUND | {"tiers": tiers})}) as (url, _):
        lines = run("doctor", "--url", url).output.splitlines()
    tier = "disk tier of 2.0 GiB: 5884 blocks, read at 2.0 GiB/s, "
    assert f"{tier}written at 1.0 GiB/s" in lines
    assert f"{tier}full, so writing isn't measured" in lines
    assert "no host tier of 1.0 MiB: no memory" in lines


def test_db_check_fails_until_db_upgrade_has_run(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path / 'new' / 'a.db'}"
    (tmp_path / "new").mkdir()
    assert run("db", "check", "--db", url).exit_code == 1
    assert not (tmp_path / "new" / "a.db").exists()  # it changes nothing
    assert run("db", "upgrade", "--db", url).exit_code == 0
    checked = run("db", "check", "--db", url, "--json")
    assert checked.exit_code == 0
    assert json.loads(checked.output)["up_to_date"]


@pytest.mark.parametrize("words", [("db", "check"), ("db", "upgrade"), ("user", "list")])
def test_r09_a_database_from_a_newer_version_is_refused_with_what_to_do(tmp_path, words):
    url = f"sqlite+aiosqlite:///{tmp_path / 'a.db'}"
    assert run("db", "upgrade", "--db", url).exit_code == 0
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    result = run(*words, "--db", url)
    assert result.exit_code == 1
    assert "schema 9999 is newer than this server" in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["check", "upgrade"])
def test_db_refuses_a_url_that_it_does_not_know(command):
    result = run("db", command, "--db", "mysql://x/y")
    assert result.exit_code == 2
    assert "db must be sqlite+aiosqlite:///FILE" in result.output


def test_a_file_that_is_no_database_is_told_without_a_traceback(tmp_path):
    (tmp_path / "notes.db").write_text("this is no database " * 100)
    result = run("db", "upgrade", "--db", f"sqlite+aiosqlite:///{tmp_path / 'notes.db'}")
    assert result.exit_code == 1
    assert result.output.startswith("sessiond: database ")
    assert "file is not a database" in result.output


def test_commands_without_arguments_show_help_and_unknown_ones_are_wrong_usage():
    assert "serve" in run().output
    assert run("sing").exit_code == 2
    assert run("--version").output.startswith("sessiond ")
