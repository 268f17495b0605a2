"""The programs of Prometheus: those of the machine, else unpacked from Debian's package.

apt checks the package against its signed index. What was unpacked is kept in the user's cache with
its SHA-256 sums, which are compared before each use.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

NAMES = ("prometheus", "promtool")


class NotToBeHadError(Exception):
    """Why there is no Prometheus."""


@dataclass(frozen=True)
class Programs:
    prometheus: str
    promtool: str


def find_programs():
    """Raises: NotToBeHadError."""
    here = [shutil.which(name) for name in NAMES]
    if all(here):
        return Programs(*here)
    folder = cache_folder()
    if not is_whole(folder):
        fetch(folder)
    return Programs(*(str(folder / name) for name in NAMES))


def cache_folder():
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "sessiond-tests" / "prometheus"


def is_whole(folder):
    sums = folder / "sha256.json"
    return sums.exists() and json.loads(sums.read_text()) == sums_of(folder)


def sums_of(folder):
    found = {}
    for name in NAMES:
        if (folder / name).exists():
            with (folder / name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def fetch(folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        package = download(Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        run(["dpkg-deb", "--extract", str(package), str(unpacked)], scratch)
        ready = Path(scratch) / "ready"
        ready.mkdir()
        for name in NAMES:
            (unpacked / "usr" / "bin" / name).rename(ready / name)
        (ready / "sha256.json").write_text(json.dumps(sums_of(ready)))
        shutil.rmtree(folder, ignore_errors=True)
        try:
            ready.rename(folder)
        except OSError:  # another run was faster
            if not is_whole(folder):
                raise


def download(scratch):
    """With the machine's lists of packages; where there are none, with own ones: no root needed."""
    lists = scratch / "state" / "lists" / "partial"
    own = ["-o", f"Dir::State={scratch}/state", "-o", f"Dir::Cache={scratch}/cache"]
    own += ["-o", "APT::Sandbox::User="]
    get = ["apt-get", "--quiet", "download", "prometheus"]
    try:
        run(get, scratch)
    except NotToBeHadError:
        lists.mkdir(parents=True)
        (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
        (scratch / "state" / "status").touch()
        own += ["-o", f"Dir::State::status={scratch}/state/status"]
        run([get[0], *own, "--quiet", "update"], scratch)
        run([get[0], *own, *get[1:]], scratch)
    return next(scratch.glob("prometheus_*.deb"))


def run(command, folder):
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", None) or error
        raise NotToBeHadError(f"{' '.join(command[:3])}: {why}") from error
