"""Which version of recallstream runs."""

import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@cache
def recallstream_version() -> str:
    """The installed version, or that of the checkout that runs without being installed; else ``unknown``."""
    try:
        return metadata.version("recallstream")
    except metadata.PackageNotFoundError:
        if not _PROJECT.is_file():
            return "unknown"
        return str(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"])
