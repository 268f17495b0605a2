"""`python -m tests.wheel`: is what the package's build makes enough, away from the checkout?

Copies the files that git would commit, builds a source archive of them and a wheel of that archive,
installs the wheel in an environment of its own, and uses it from a folder that holds no code: a
database, a server, one turn of a chat, the console. Needs the default model: `sessiond model pull`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.server_process import free_port

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "loadtest", "migrations", "policies", "sessiond")
NEEDED = {  # by ending, and how many at least: what no import would miss
    "sessiond/api/console/": 20,
    "schema_extensions.json": 1,
    "migrations/versions/": 5,
    "migrations/script.py.mako": 1,
    "loadtest/data/": 3,
    ".c": 15,
    ".h": 8,
    "libsessiond_kernels.so": 1,
    "libsessiond_blocks.so": 1,
    "py.typed": len(PACKAGES),
}
_LISTENING = re.compile(r"listening\s+(http://\S+)")
_GUARD_S = 900  # a server that hangs; as for a test
# runs in the installed environment: where things lie, and whether the kernels can be built anew
_PROBE = """
import engine, loadtest, migrations, policies, sessiond, sys
from pathlib import Path
for package in (engine, loadtest, migrations, policies, sessiond):
    assert Path(package.__file__).is_relative_to(sys.prefix), package.__file__
from importlib.metadata import version
from engine.model.kernels import build, library
from loadtest import people
from sessiond.store import migrate
assert version("sessiond") == sys.argv[1], version("sessiond")
library.load_library()
build.build(Path(sys.argv[2]) / "rebuilt.so")
assert people.DATA.is_dir()
"""


def main() -> None:
    """Build, install, use; an exception tells what was missing."""
    with tempfile.TemporaryDirectory(prefix="sessiond-wheel-") as name:
        folder = Path(name)
        with _timed("source archive"):
            archive = _source_archive(folder)
        with _timed("wheel of the archive"):
            wheel = _wheel(folder, archive)
        _look_into(wheel)
        with _timed("installation"):
            binaries = _install(folder, wheel)
        with _timed("use"):
            _use(folder, binaries, wheel.name.split("-")[1])
    sys.stdout.write(f"{wheel.name}: installed and used outside the checkout\n")


@contextmanager
def _timed(what: str) -> Iterator[None]:
    started_s = time.monotonic()
    yield
    sys.stdout.write(f"{what}: {time.monotonic() - started_s:.0f} s\n")
    sys.stdout.flush()


def _run(*command: object, cwd: Path) -> str:
    """Return what it wrote. Nothing of the checkout is on its path."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd, env=_clean(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def _environment(folder: Path) -> Path:
    """Make one; its folder of programs."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


def _pip(binaries: Path, *words: object) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    constraint = ("--constraint", ROOT / "constraints.txt")
    command = (binaries / "python", "-m", "pip", words[0], *quiet, *constraint, *words[1:])
    _run(*command, cwd=binaries)


def _source_archive(folder: Path) -> Path:
    """From the files that git would commit: what lies beside them must not be needed."""
    tree = folder / "tree"
    listed = _run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for path in filter(None, listed.split("\0")):
        if (ROOT / path).is_file():  # one that was deleted and not yet committed is listed
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, tree / path)
    binaries = _environment(folder / "builder")
    _pip(binaries, "install", "setuptools>=77")
    code = "import sys, setuptools.build_meta as b; print(b.build_sdist(sys.argv[1]))"
    made = _run(binaries / "python", "-c", code, folder, cwd=tree).splitlines()[-1]
    return folder / made


def _wheel(folder: Path, archive: Path) -> Path:
    """In an isolated build environment, as an installation from the archive would."""
    _pip(folder / "builder" / "bin", "wheel", "--no-deps", "--wheel-dir", folder / "dist", archive)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def _look_into(wheel: Path) -> None:
    assert "-py3-none-" in wheel.name, f"{wheel.name} fits one Python only"
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == set(PACKAGES), f"the wheel's folders are {sorted(tops)}"
    for part, least in NEEDED.items():
        found = [name for name in names if name.startswith(part) or name.endswith(part)]
        assert len(found) >= least, f"{part} is {len(found)} times in the wheel, not {least}"


def _install(folder: Path, wheel: Path) -> Path:
    binaries = _environment(folder / "clean")
    _pip(binaries, "install", wheel)
    return binaries


def _use(folder: Path, binaries: Path, version: str) -> None:
    """As a user does who has no checkout."""
    away = folder / "away"
    away.mkdir()
    _run(binaries / "python", "-c", _PROBE, version, away, cwd=away)
    assert version in _run(binaries / "sessiond", "--version", cwd=away)
    database = f"sqlite+aiosqlite:///{away / 'sessiond.db'}"
    _run(binaries / "sessiond", "db", "upgrade", "--db", database, cwd=away)
    _run(binaries / "sessiond", "db", "check", "--db", database, cwd=away)
    refused = subprocess.run(
        [binaries / "sessiond", "simulate", "--synthetic-sessions", "1", "--plot", "a.png"],
        cwd=away, env=_clean(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 1, refused
    assert "pip install 'sessiond[plots]'" in refused.stderr, refused.stderr
    with _server(away, binaries, database) as url:
        body = json.dumps({"input": "What is the capital of France?", "temperature": 0}).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/v1/responses", body, headers)
        answer = json.loads(_get(asked))
        text = answer["output"][0]["content"][0]["text"]
        assert answer["status"] == "completed", answer
        assert "Paris" in text, text
        assert b"<html" in _get(urllib.request.Request(f"{url}/console"))


def _get(request: urllib.request.Request) -> bytes:
    with urllib.request.urlopen(request, timeout=_GUARD_S) as answer:
        assert answer.status == 200, answer.status
        return bytes(answer.read())


@contextmanager
def _server(away: Path, binaries: Path, database: str) -> Iterator[str]:
    """Serve on a free port of loopback until the block ends."""
    command = [
        *(binaries / "sessiond", "serve", "--port", str(free_port()), "--db", database),
        *("--disk-tier-size", "0", "--kv-cache-memory", "256MiB", "--weights", "native"),
    ]
    with subprocess.Popen(
        command, cwd=away, env=_clean(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            yield _url(process)
            assert process.poll() is None, "the server ended while it was used"
        finally:
            process.terminate()


def _url(process: subprocess.Popen[str]) -> str:
    """Read what the server says until it listens."""
    said = []
    for line in process.stdout or ():
        said.append(line)
        if (found := _LISTENING.search(line)) is not None:
            return found[1]
    raise SystemExit(f"the server does not start:\n{''.join(said)}")


def _clean() -> dict[str, str]:
    """The environment without what would lead back to the checkout."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SESSIOND_"))}


if __name__ == "__main__":
    main()
