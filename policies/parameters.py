"""Parameters of policies: errors name parameter, value and what is allowed."""


class ParameterError(ValueError):
    """A policy lacks the parameter, or does not accept its value."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name} must be {allowed} (got {value!r})")
        self.name = name
        self.value = value
        self.allowed = allowed


def need_count(name: str, value: object, *, least: int = 1) -> None:
    """Check a whole number.

    Raises:
        ParameterError: it is no whole number, or less than `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ParameterError(name, value, f"a whole number of {least} or more")


def need_share(name: str, value: object) -> None:
    """Check a share of a whole.

    Raises:
        ParameterError: it is not above 0, or more than 1.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ParameterError(name, value, "a number above 0, up to 1")
