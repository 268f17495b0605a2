"""`sessiond serve`: sets up log, database, engine and gateway, and stops them in order."""

import asyncio
import contextlib
import logging
import os
import re
import resource
import socket
import sys
from pathlib import Path

from rich.console import Console

from engine.errors import ConfigError, EngineError
from engine.files.catalog import UnknownModelError
from engine.ipc.worker_client import WorkerEngine
from engine.system.heap import ShortPauses, trim_heap
from sessiond.api_keys import without_keys
from sessiond.cli.banner import Banner, program_name
from sessiond.cli.fail import WRONG_USAGE, fail
from sessiond.cli.model import pull_with_progress
from sessiond.sessions.transcript import TextFormat
from sessiond.settings import Settings, service_variables

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# uvicorn logs this for every denied upgrade, although the response was complete
_SPURIOUS = "ASGI callable returned without completing handshake."
# below this level these libraries log frames, headers and rows
_TALKATIVE = ("aiosqlite", "httpcore", "httpx", "psycopg", "sqlalchemy", "uvicorn", "websockets")
_DETAIL = re.compile(r"^DETAIL:.*$", re.MULTILINE)
# In addition to the drain timeout: cancelled turns end, and sockets are closed.
_DRAIN_GRACE_S = 30.0

logger = logging.getLogger(__name__)


class KeylessFormatter(logging.Formatter):
    """Removes keys and rows quoted by a database from records, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; a filter would run before its traceback is formatted."""
        return _DETAIL.sub("DETAIL: [removed]", without_keys(super().format(record)))


def configure_logs() -> None:
    """Log warnings of libraries and this program's info records to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(KeylessFormatter(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    quiet_libraries()
    for name in ("sessiond", "engine"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != _SPURIOUS)


def quiet_libraries() -> None:
    """Restrict libraries that would log users' texts to warnings, whatever the root level."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


def serve(settings: Settings) -> None:
    """Serve conversations until Ctrl-C or SIGTERM.

    Settings come from these flags, else from SESSIOND_* variables (--max-num-seqs is
    SESSIOND_MAX_NUM_SEQS), else from sessiond.toml (or the file named by SESSIOND_CONFIG).
    """
    from sessiond.cli.server import PortTakenError, bind

    configure_logs()
    _report_service_variables()
    console = Console(highlight=False)
    banner = Banner(console, program=program_name(sys.argv[0]))
    banner.greet()
    _allow_many_sockets()
    try:
        listener = bind(settings.host, settings.port)
    except PortTakenError as error:
        fail(error)
    with contextlib.closing(listener):
        model = _fetch_model(settings.model, console)
        _migrate(settings.db)
        if settings.auth == "keys":
            _warn_without_keys(settings.db)
        try:
            asyncio.run(_serve(settings, model, listener, banner))
        except ConfigError as error:
            fail(
                f"{_as_given(error.name)} must be {error.allowed} (got {error.value})",
                WRONG_USAGE,
            )
        except (EngineError, OSError) as error:
            fail(error)
        except SystemExit:  # uvicorn exits when the application fails to start
            fail("the application did not start (see the log above)")
    banner.stopped()


async def _serve(settings: Settings, model: Path, listener: socket.socket, banner: Banner) -> None:
    ShortPauses().begin()
    engine = WorkerEngine(
        settings.engine_config(),
        on_progress=banner.progress,
        step_timeout_s=settings.step_timeout_s,
    )
    try:
        text, _ = await asyncio.gather(asyncio.to_thread(_load_text, model), engine.start())
        from sessiond.assembly import build_server
        from sessiond.cli.server import ServerHooks, serve_until_signal, url_of

        server = build_server(settings, engine, text, port=listener.getsockname()[1])
        hooks = ServerHooks(
            on_listening=lambda: banner.serving(settings, engine.info, url_of(listener)),
            on_drain=lambda: banner.draining(settings.drain_timeout_s),
            drain=server.drain,
            drain_limit_s=settings.drain_timeout_s + _DRAIN_GRACE_S,
        )
        try:
            await serve_until_signal(server.app, server.gateway.limits, listener, hooks)
        finally:
            await server.close()
    finally:
        await engine.stop()


def _load_text(model: Path) -> TextFormat:
    """Load the gateway's tokenizer and modules while the engine loads."""
    from sessiond.assembly import load_text_format

    text = load_text_format(model)
    trim_heap()
    return text


def _fetch_model(name: str, console: Console) -> Path:
    """Return the model's path; a model that is known by name is fetched first."""
    try:
        return pull_with_progress(name, console)
    except UnknownModelError as error:
        fail(f"--model={name}: {error}", WRONG_USAGE)
    except EngineError as error:
        fail(error)


def _migrate(db: str) -> None:
    from sessiond.store.errors import StoreConfigError, StoreError
    from sessiond.store.migrate import upgrade

    try:
        upgrade(db)
    except StoreConfigError as error:
        fail(error, WRONG_USAGE)
    except StoreError as error:
        fail(error)


def _warn_without_keys(db: str) -> None:
    """Warn if there are no keys, since the server then refuses every request."""
    from sessiond.store.store import Store

    async def any_key() -> bool:
        store = Store(db)
        try:
            return await store.accounts.any_key()
        finally:
            await store.close()

    if not asyncio.run(any_key()):
        logger.warning(
            "no user has a key, so every request is refused; "
            "create one: `sessiond user add NAME --role admin`"
        )


def _report_service_variables() -> None:
    if names := service_variables(os.environ):
        logger.info(
            "Kubernetes set %s for a Service named like this program; these variables are no "
            "settings and are passed over (enableServiceLinks: false avoids them)",
            ", ".join(names),
        )


def _as_given(setting: str) -> str:
    """Return an engine setting's name for the user: a flag, or an environment variable as is."""
    return f"--{setting.replace('_', '-')}" if setting.islower() else setting


def _allow_many_sockets() -> None:
    """Raise the limit of open files to the system's maximum: each socket takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
