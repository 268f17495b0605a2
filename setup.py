"""Builds the C libraries where a C compiler is there; all else is in pyproject.toml.

Without a compiler the package installs all the same: the torch path serves then, and blocks are
given back one by one.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

sys.path.insert(0, str(Path(__file__).resolve().parent))  # an isolated build does not

from engine.kv import free_library_build
from engine.model.kernels import build as kernels_build
from engine.system.c_compiler import BuildError

HERE = Path(__file__).resolve().parent
KERNELS = f"engine.model.kernels.{Path(kernels_build.LIBRARY_NAME).stem}"
BLOCKS = f"engine.kv.{Path(free_library_build.LIBRARY_NAME).stem}"
BUILDS = {KERNELS: kernels_build, BLOCKS: free_library_build}


class BuildLibraries(build_ext):
    """Compiles what is loaded, not imported; each kernel once per instruction set."""

    def get_ext_filename(self, fullname: str) -> str:
        """Name the library as what it is."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile; a failure is a warning, because the extension is optional."""
        try:
            BUILDS[ext.name].build(Path(self.get_ext_fullpath(ext.name)))
        except BuildError as error:
            raise CompileError(f"{ext.name} was not built: {error}") from error


class OneWheel(bdist_wheel):
    """A wheel per platform for all Pythons: the libraries know no Python, ctypes loads them."""

    def get_tag(self) -> tuple[str, str, str]:
        """Keep the platform alone."""
        return "py3", "none", super().get_tag()[2]


def library(name: str, sources: list[Path]) -> Extension:
    """One that the package can do without."""
    return Extension(name, sources=[str(path.relative_to(HERE)) for path in sources], optional=True)


setup(
    ext_modules=[
        library(KERNELS, kernels_build.sources()),
        library(BLOCKS, [free_library_build.SOURCE]),
    ],
    cmdclass={"bdist_wheel": OneWheel, "build_ext": BuildLibraries},
)
