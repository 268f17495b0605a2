"""No log line, at any level, holds a key, what somebody said, or the password of the database.

All loggers are turned to DEBUG and written by the server's own formatter, over good requests, bad
ones, and ones that fail inside; the canaries are looked for in every line, tracebacks included.
"""

import io
import json
import logging

import httpx
import pytest
import sqlalchemy as sa
from websockets.exceptions import InvalidStatus

from sessiond.api.auth import KEY_SUBPROTOCOL
from sessiond.api_keys import new_api_key, without_keys
from sessiond.cli.serve import KeylessFormatter, quiet_libraries
from sessiond.store.database import Database
from sessiond.store.errors import StoreConfigError, StoreError
from sessiond.store.store import Store
from tests.api.tenants import Person

SAID = "canary-of-what-was-said"
PASSWORD = "canary-of-a-password"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@pytest.fixture
def log():
    """All that is logged, by everyone, as it would be written."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(KeylessFormatter(FORMAT))
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("", *root.manager.loggerDict)}
    for name in levels:
        logging.getLogger(name).setLevel(logging.NOTSET)
    root.setLevel(logging.DEBUG)
    quiet_libraries()
    root.addHandler(handler)
    yield written
    root.removeHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def assert_clean(log, *canaries):
    text = log.getvalue()
    assert text.count("\n") > 3  # something was logged at all
    for canary in (SAID, PASSWORD, *canaries):
        assert canary not in text, [line for line in text.splitlines() if canary in line][:3]


BAD = [
    b'{"input": "' + SAID.encode() + b'", "nope": "' + SAID.encode() + b'"}',
    b'{"input": "' + SAID.encode(),
    json.dumps({"model": "fake", "input": SAID, "metadata": {SAID: 1}}).encode(),
    json.dumps({"model": SAID, "input": SAID}).encode(),
    json.dumps({"model": "fake", "input": SAID, "conversation": SAID}).encode(),
    json.dumps({"model": "fake", "input": SAID * 2000, "max_output_tokens": 4}).encode(),
]


async def play_bad(http, running, ann):
    for body in BAD:
        assert (await http.post("/v1/responses", content=body)).status_code >= 400
        assert (await http.post("/v1/chat/completions", content=body)).status_code >= 400
    for path in (f"/v1/responses/{SAID}", f"/v1/conversations/{SAID}", f"/{SAID}?a={SAID}"):
        assert (await http.get(path)).status_code == 404
    async with ann.socket() as line:
        for body in BAD:
            await line.ws.send(body.decode())
            await line.hear("error")


async def play_keys(running, wrong):
    for scheme in ("Bearer", "bearer", "Basic"):
        headers = {"Authorization": f"{scheme} {wrong.text}", "X-Session-Id": SAID}
        async with httpx.AsyncClient(
            base_url=running.served.http_url, trust_env=False, headers=headers, timeout=60
        ) as http:
            assert (await http.get("/v1/sessions")).status_code == 401
    with pytest.raises(InvalidStatus):
        async with running.served.connect(subprotocols=["realtime", KEY_SUBPROTOCOL + wrong.text]):
            pass


async def test_no_line_of_good_bad_and_failing_requests_holds_a_canary(stack, log):
    wrong = new_api_key()
    async with stack(keys=True) as running:
        ann = await Person.join(running, "ann")
        async with ann.http() as http:
            await ann.chat(SAID, SAID, instructions=SAID, metadata={"a": SAID}, user=SAID)
            body = {
                "model": "fake",
                "max_tokens": 4,
                "messages": [{"role": "user", "content": SAID}],
            }
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
            async with ann.socket() as line:
                await line.turn(SAID, instructions=SAID)
            async with ann.socket(
                additional_headers={}, subprotocols=["responses", KEY_SUBPROTOCOL + ann.key]
            ) as line:
                await line.turn(SAID)
            await play_bad(http, running, ann)
            await play_keys(running, wrong)
            running.model.fail_at.add(running.model.steps + 1)
            failed = {"model": "fake", "input": SAID, "max_output_tokens": 4}
            answer = await http.post("/v1/responses", json=failed)
            assert answer.status_code == 500 or answer.json()["status"] == "failed"
            await play_fault(http, running)
        await running.idle()
    secret = ann.key.partition(".")[2]
    assert_clean(log, secret, wrong.secret)
    assert "Traceback" in log.getvalue()  # the fault was logged, and that without a canary


async def play_fault(http, running):
    """A fault of the server's own, in a request that has everything in it."""
    turns = running.served.service.turns

    async def broken(*_, **__):
        raise ZeroDivisionError

    real, turns.bind = turns.bind, broken
    body = {"model": "fake", "input": SAID, "instructions": SAID}
    try:
        answer = await http.post("/v1/responses", json=body)
    finally:
        turns.bind = real
    assert answer.status_code == 500
    assert SAID not in answer.text


async def test_an_error_of_the_database_quotes_no_rows(url, log):
    database = Database(url)
    statement = sa.text("SELECT :said FROM nowhere")

    async def work(connection):
        await connection.execute(statement, {"said": SAID})

    async def twice(connection):
        await connection.execute(sa.text("CREATE TABLE canaries (a TEXT PRIMARY KEY)"))
        for _ in range(2):
            await connection.execute(sa.text("INSERT INTO canaries VALUES (:said)"), {"said": SAID})

    try:
        for wrong in (work, twice):
            with pytest.raises(StoreError) as failed:
                await database.write(wrong)
            logging.getLogger("sessiond").error("it failed: %s", failed.value)
            logging.getLogger("sessiond").error("with its trace", exc_info=failed.value)
            assert SAID not in str(failed.value)
    finally:
        await database.close()
    assert_clean(log)
    assert "canaries" in log.getvalue()  # what failed is told


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://ann:{PASSWORD}@localhost:x/name",
        f"mysql://ann:{PASSWORD}@localhost/name",
        f"postgresql+nothing://ann:{PASSWORD}@localhost/name",
        f"//ann:{PASSWORD}@localhost",
        f"postgresql+psycopg://ann:{PASSWORD}/x@localhost:y/name",
    ],
)
def test_an_error_about_the_databases_url_tells_no_password(url):
    with pytest.raises((StoreConfigError, StoreError)) as refused:
        Store(url)
    assert PASSWORD not in str(refused.value)


def test_passwords_in_urls_are_taken_out_of_any_text():
    text = f"at postgresql+psycopg://ann:{PASSWORD}@host/x and http://localhost:8080/a@b"
    assert without_keys(text) == (
        "at postgresql+psycopg://ann:[removed]@host/x and http://localhost:8080/a@b"
    )
