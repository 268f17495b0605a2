"""Version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def product_version() -> str:
    """The installed version; "dev" in a tree that is not installed."""
    try:
        return version("sessiond")
    except PackageNotFoundError:
        return "dev"
