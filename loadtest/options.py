"""Validates the options of a load test before it starts. Pure."""

from argparse import ArgumentTypeError
from collections.abc import Callable


def checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """A type for argparse: the text unchanged if `parse` accepts it or it is empty."""

    def check(text: str) -> str:
        try:
            if text:
                parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error
        return text

    return check
