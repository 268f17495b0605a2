"""Terminal output of `sessiond serve`. Plain lines, in colour where the terminal supports it."""

import shutil
from pathlib import Path

from rich.console import Console
from rich.text import Text

from engine.ipc.messages import EngineInfo
from engine.ipc.queries import TierInfo
from engine.system.byte_size import format_bytes
from sessiond.cli.ask_server import DEFAULT_URL
from sessiond.settings import Settings
from sessiond.version import product_version

_INDENT = 13
_KEY_WORDS = {"none": "", "keys": " and a key of `sessiond user`"}


def program_name(started_as: str) -> str:
    """Return how to call the command again: as it was called if its name is not in PATH."""
    if Path(started_as).name != "sessiond" or shutil.which("sessiond"):
        return "sessiond"
    return started_as


class Banner:
    """Writes the server's start and stop to one console."""

    def __init__(self, console: Console, *, program: str = "sessiond") -> None:
        self._console = console
        self._program = program

    def greet(self) -> None:
        """Print name and version."""
        self._console.print(
            Text.assemble(
                ("sessiond", "bold cyan"),
                (f" {product_version()}", "dim"),
                "  keeps each conversation's KV cache alive between turns",
            )
        )

    def progress(self, text: str) -> None:
        """Print the current step of the start."""
        self._console.print(Text(f"  {text}", "dim"))

    def serving(self, settings: Settings, info: EngineInfo, url: str) -> None:
        """Print model, memory, address and how to connect."""
        rows = {
            "model": _model(info),
            "context": _context(info),
            "KV pool": _pool(info),
            **{f"{tier.name} tier": _tier(tier, settings) for tier in info.tiers},
            "database": Text(_without_password(settings.db)),
            "listening": Text.assemble(
                (url, "bold green"), f"   socket {url.replace('http', 'ws', 1)}/v1/responses"
            ),
            "chat": Text.assemble(
                (_chat_command(self._program, url), "bold"), "   in another terminal"
            ),
            "console": Text(f"{url}/console   in a browser"),
            "clients": Text(f"any OpenAI client with base_url={url}/v1{_KEY_WORDS[settings.auth]}"),
            "stop": Text(f"Ctrl-C; running turns get {settings.drain_timeout_s:g} s to finish"),
        }
        for name, value in rows.items():
            self._row(name, value)

    def _row(self, name: str, value: Text) -> None:
        """Print one row, on several lines if the terminal is narrow."""
        lines: list[Text] = [value]
        if self._console.is_terminal:
            lines = list(value.wrap(self._console, max(20, self._console.width - _INDENT)))
        for label, line in zip([name, *[""] * len(lines)], lines, strict=False):
            line.rstrip()
            self._console.print(Text.assemble((f"  {label:<10} ", "dim"), line), soft_wrap=True)

    def draining(self, timeout_s: float) -> None:
        """Print that the server is shutting down."""
        self._console.print(
            Text(f"  stopping: running turns get {timeout_s:g} s; Ctrl-C again cuts them", "dim")
        )

    def stopped(self) -> None:
        """Print that the server has shut down in order."""
        self._console.print(Text("  stopped", "dim"))


def _model(info: EngineInfo) -> Text:
    return Text(
        f"{info.model} ({info.architecture}) on {info.device}, "
        f"weights {info.weights} ({format_bytes(info.weights_bytes)}), "
        f"activations {info.dtype}, attention {info.attention}"
    )


def _context(info: EngineInfo) -> Text:
    return Text(
        f"up to {info.max_model_len} tokens; {info.max_num_seqs} turns run at once, "
        f"{info.max_num_waiting} may wait"
    )


def _pool(info: EngineInfo) -> Text:
    tokens = info.total_blocks * info.block_size
    return Text(
        f"{format_bytes(info.pool_bytes)} for {tokens} tokens "
        f"({info.total_blocks} blocks of {info.block_size}, {info.kv_dtype}): {info.pool_reason}"
    )


def _tier(tier: TierInfo, settings: Settings) -> Text:
    size = format_bytes(tier.bytes)
    if tier.reason:
        return Text(f"{size}, not available: {tier.reason}", "yellow")
    place = f" in {settings.disk_tier_path}" if tier.name == "disk" else ""
    return Text(f"{size}{place}, {tier.blocks} blocks for idle KV")


def _chat_command(program: str, url: str) -> str:
    if url == DEFAULT_URL:
        return f"{program} chat"
    return f"{program} chat --url {url}"


def _without_password(db: str) -> str:
    """Return a database URL without its password."""
    scheme, separator, rest = db.partition("://")
    credentials, at, place = rest.rpartition("@")
    if not at:
        return db
    user = credentials.partition(":")[0]
    return f"{scheme}{separator}{user}:***@{place}"
