"""Errors of the engine. Input errors name field, value and what is allowed; bugs carry data."""


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class ConfigError(EngineError):
    """A setting has an invalid value."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name} must be {allowed} (got {value!r})")
        self.name = name
        self.value = value
        self.allowed = allowed


class ModelFileError(EngineError):
    """A model's file is missing, damaged, or of a kind that can't be loaded."""


class TemplateError(EngineError):
    """A chat template can't be encoded as deltas, or rejected its input."""


class EngineUnavailableError(EngineError):
    """The engine process is not available (starting, restarting or stopped)."""


class DeviceLostError(EngineError):
    """The device, or the process's state on it, is permanently broken: only a new process helps."""


class Corruption(EngineError):  # noqa: N818 -- a state, not an error of the caller
    """An invariant of the memory is broken: always a bug, never an input error."""
