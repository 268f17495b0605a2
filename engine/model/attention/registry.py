"""The attention backends that torch runs. Each is imported only when it is built."""

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from engine.model.attention.declaration import Declaration

if TYPE_CHECKING:
    from engine.files.model_spec import ModelSpec
    from engine.model.attention.protocol import AttentionBackend
    from engine.model.layers import Arithmetic

# folders beside this module, in the order in which `auto` prefers them
_FOLDERS = ("triton", "flash", "reference")


class DeclarationModule(Protocol):
    """`declaration.py` of a backend's folder: needs neither torch nor the backend's library."""

    DECLARATIONS: tuple[Declaration, ...]


class BackendModule(Protocol):
    """`backend.py` of a backend's folder. Imported only when the backend was chosen."""

    def build(
        self, spec: "ModelSpec", arithmetic: "Arithmetic", declaration: Declaration
    ) -> "AttentionBackend":
        """Return the backend for a model, with the library of the declaration."""
        ...


def declarations() -> tuple[Declaration, ...]:
    """Return the declarations of all backends, in the order of preference of `auto`."""
    modules = (cast("DeclarationModule", _module(folder, "declaration")) for folder in _FOLDERS)
    return tuple(each for module in modules for each in module.DECLARATIONS)


def build_backend(
    declaration: Declaration, spec: "ModelSpec", arithmetic: "Arithmetic"
) -> "AttentionBackend":
    """Build the backend that a declaration belongs to."""
    for folder in _FOLDERS:
        module = cast("DeclarationModule", _module(folder, "declaration"))
        if declaration in module.DECLARATIONS:
            backend = cast("BackendModule", _module(folder, "backend"))
            return backend.build(spec, arithmetic, declaration)
    raise ValueError(declaration)


def _module(folder: str, name: str) -> object:
    return import_module(f"engine.model.attention.{folder}.{name}")
