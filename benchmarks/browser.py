"""Finds a Chromium on this machine: Debian has one, `chromium-headless-shell`."""

import os
import shutil

VARIABLE = "CHROMIUM"
NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)


def find_browser() -> str | None:
    """The command of a Chromium: what the variable names, else the first on the path."""
    named = os.environ.get(VARIABLE)
    return named or next(filter(None, map(shutil.which, NAMES)), None)
