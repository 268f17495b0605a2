"""`/console` as it is served: whole, from the package, open, and closed to everything foreign."""

import re
import tomllib
from array import array
from base64 import b64decode
from pathlib import Path

import httpx
import pytest

from engine.ipc.client import GetPool
from tests.api.tenants import Person
from tests.docs.blocks import ROOT

FOLDER = ROOT / "sessiond" / "api" / "console"
FILES = sorted(path.name for path in FOLDER.iterdir())
LOADED = [name for name in FILES if name != "index.html"]


@pytest.fixture
def keyed(stack):
    return lambda **options: stack(keys=True, **options)


def http_of(running):
    return httpx.AsyncClient(base_url=running.served.http_url, trust_env=False, timeout=60)


async def test_page_and_files_come_without_a_key_as_they_lie_in_the_package(keyed):
    async with keyed() as running, http_of(running) as http:
        page = await http.get("/console")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.content == (FOLDER / "index.html").read_bytes()
        for name in LOADED:
            answer = await http.get(f"/console/{name}")
            assert answer.status_code == 200
            assert answer.content == (FOLDER / name).read_bytes()
            kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
            assert answer.headers["content-type"].startswith(kind[Path(name).suffix])


async def test_nothing_else_is_served(keyed):
    async with keyed() as running, http_of(running) as http:
        for path in ("x.js", "index.html", "", "../app.py", "%2e%2e/app.py", "a/theme.css"):
            answer = await http.get(f"/console/{path}")
            assert answer.status_code in {401, 404}, path
            assert "import" not in answer.text
        assert (await http.post("/console")).status_code == 405


async def test_the_browser_is_told_to_load_nothing_from_elsewhere(stack):
    async with stack() as running, http_of(running) as http:
        for path in ("/console", f"/console/{LOADED[0]}"):
            headers = (await http.get(path)).headers
            policy = dict(
                part.split(" ", 1) for part in headers["content-security-policy"].split("; ")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["require-trusted-types-for"] == "'script'"
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"


async def test_a_file_that_is_known_is_not_sent_again(stack):
    async with stack() as running, http_of(running) as http:
        first = await http.get("/console")
        again = await http.get("/console", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = await http.get("/console", headers={"If-None-Match": '"other"'})
        assert other.status_code == 200


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_place_or_makes_html_of_text(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    foreign = set(re.findall(r"https?://[^\s\"'>)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert foreign == set()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    if name == "index.html":
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", text)


def test_everything_that_is_loaded_is_there():
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    wanted = set(re.findall(r"\"console/([\w.]+)\"", page))
    for name in FILES:
        if name.endswith(".js"):
            wanted |= set(re.findall(r"from \"\./([\w.]+)\"", (FOLDER / name).read_text()))
    assert wanted == set(LOADED)


def test_the_files_are_in_the_wheel():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "api/console/*" in settings["tool"]["setuptools"]["package-data"]["sessiond"]


async def test_the_pool_is_mapped_for_admins(keyed):
    async with keyed(
        engine_config={"idle_prefill": False}
    ) as running:  # it may take one block more
        root = await Person.join(running, "root", "admin")
        ada = await Person.join(running, "ada")
        async with ada.socket() as line, root.http() as http, ada.http() as hers:
            response = (await line.turn("hello there, and hello again"))["response"]
            answer = (await http.get("/admin/pool")).json()
            assert (await hers.get("/admin/pool")).status_code == 403
            found = await running.engine.ask(GetPool())
        assert answer["states"] == found.states.decode()
        assert answer["total_blocks"] == len(answer["states"]) == 256
        assert answer["sessions"] == found.sessions == [response["conversation"]["id"]]
        owners = array("i", b64decode(answer["owners"]))
        assert owners.count(0) == answer["states"].count("a") == response["sessiond"]["blocks"]
        assert answer["block_size"] * 64 == answer["kv_bytes_per_block"]
