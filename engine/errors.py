"""Errors of the engine. User mistakes name field, value and what is allowed; bugs carry data."""


class EngineError(Exception):
    """Base of everything that the engine raises on purpose."""


class ConfigError(EngineError):
    """A setting has a value that can't work."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value!r}: allowed is {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


class ModelFileError(EngineError):
    """A model's file is missing, damaged, or of a kind that can't be loaded."""


class TemplateError(EngineError):
    """A chat template can't be encoded as deltas, or refused its input."""


class EngineUnavailableError(EngineError):
    """The engine process is not there (starting, restarting or stopped)."""


class DeviceLostError(EngineError):
    """The device, or the process's state on it, is broken for good: only a new process helps."""


class Corruption(EngineError):  # noqa: N818 -- a state, not an error of the caller
    """An invariant of the memory does not hold: always a bug, never a user's mistake."""
