"""Builds the native kernels where a C compiler is there; all else is in pyproject.toml.

Without a compiler the package installs all the same: the torch path serves then.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

sys.path.insert(0, str(Path(__file__).resolve().parent))  # an isolated build does not

from engine.model.kernels.build import LIBRARY_NAME, BuildError, build, sources

KERNELS = "engine.model.kernels.libsessiond_kernels"


class BuildKernels(build_ext):
    """Compiles each kernel once per instruction set, which an Extension can't say."""

    def get_ext_filename(self, fullname: str) -> str:
        """Name the library as what it is: one that is loaded, not imported."""
        return str(Path(*fullname.split(".")[:-1]) / LIBRARY_NAME)

    def build_extension(self, ext: Extension) -> None:
        """Compile; a failure is a warning, because the extension is optional."""
        try:
            build(Path(self.get_ext_fullpath(ext.name)))
        except BuildError as error:
            raise CompileError(f"native kernels were not built: {error}") from error


setup(
    ext_modules=[
        Extension(
            KERNELS,
            sources=[str(path.relative_to(Path(__file__).resolve().parent)) for path in sources()],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
