"""Where the peers lie in the user's cache, and which are there.

peers/llama/bin/      llama-server and its tools
peers/llama/models/   our default model requantised to Q4_0
peers/vllm/           a virtual environment of its own
peers/vllm-cache/     what vLLM has compiled
peers/vllm-model/     our default model's weights in bfloat16, as vLLM wants them
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.files.catalog import CATALOG, DEFAULT_MODEL, models_folder

PeerKind = Literal["llama", "vllm"]
LLAMA_TOOLS = ("llama-server", "llama-quantize", "llama-bench", "llama-batched-bench")


@dataclass(frozen=True, slots=True)
class PeerFiles:
    """The peers below one folder."""

    folder: Path

    @classmethod
    def of_user(cls) -> "PeerFiles":
        """Those of the user's cache."""
        return cls(models_folder(os.environ).parent / "peers")

    @property
    def q4_1(self) -> Path:
        """The default model's file, the very one that this project's server reads."""
        return CATALOG[DEFAULT_MODEL].path()

    def llama_tool(self, name: str) -> Path:
        """One of `LLAMA_TOOLS`."""
        return self.folder / "llama" / "bin" / name

    @property
    def q4_0(self) -> Path:
        """The default model requantised to Q4_0."""
        return self.folder / "llama" / "models" / f"{DEFAULT_MODEL}.Q4_0.gguf"

    @property
    def vllm_python(self) -> Path:
        """The interpreter of vLLM's environment."""
        return self.folder / "vllm" / "bin" / "python"

    @property
    def vllm_package(self) -> Path:
        """The package of vLLM: there once all that it needs has been fetched."""
        packages = self.folder.glob("vllm/lib/python*/site-packages/vllm/__init__.py")
        return next(packages, self.folder / "vllm" / "lib" / "vllm")

    @property
    def vllm_model(self) -> Path:
        """The folder with the default model in bfloat16."""
        return self.folder / "vllm-model"

    @property
    def vllm_cache(self) -> Path:
        """What vLLM has compiled, for its next start."""
        return self.folder / "vllm-cache"

    def missing(self, kind: PeerKind) -> list[Path]:
        """What a peer still lacks; nothing when it can run."""
        needed = {
            "llama": [*(self.llama_tool(name) for name in LLAMA_TOOLS), self.q4_0, self.q4_1],
            "vllm": [self.vllm_package, self.vllm_model / "model.safetensors"],
        }[kind]
        return [path for path in needed if not path.exists()]
