"""Imports the flash-attn library of a declaration, or reports why it can't be used."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from engine.errors import ConfigError
from engine.model.attention.declaration import Declaration


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A version's functions: in the first of `modules` that has all `functions`."""

    modules: tuple[str, ...]
    functions: tuple[str, ...]


LIBRARIES = {  # by distribution
    "flash-attn": Library(
        modules=("flash_attn",), functions=("flash_attn_varlen_func", "flash_attn_with_kvcache")
    ),
    "flash-attn-3": Library(
        modules=("flash_attn_interface", "flash_attn_3.flash_attn_interface"),
        functions=("flash_attn_with_kvcache",),
    ),
    "flash-attn-4": Library(modules=("flash_attn.cute",), functions=("flash_attn_varlen_func",)),
}

Import = Callable[[str], ModuleType]


def find_library(declaration: Declaration, importer: Import) -> ModuleType:
    """Import the version of a declaration. `importer` is importlib's `import_module`.

    Raises:
        ConfigError: it is installed, but can't be imported here, or lacks a function.
    """
    (package,) = declaration.packages
    library = LIBRARIES[package.name]
    reasons = []
    for name in library.modules:
        try:
            module = importer(name)
        except Exception as error:  # libraries built for another torch raise anything
            reasons.append(f"{name}: {type(error).__name__}: {error}")
            continue
        missing = [function for function in library.functions if not hasattr(module, function)]
        if not missing:
            return module
        reasons.append(f"{name} has no {' and no '.join(missing)}")
    raise ConfigError(
        "attention_backend",
        declaration.name,
        f"another backend, or {package} built for this torch and CUDA: "
        f"{declaration.title} is installed but cannot be used ({'; '.join(reasons)})",
    )
