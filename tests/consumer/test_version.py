"""Which version the service says it is, installed or not."""

import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from consumer import version
from consumer.version import recallstream_version

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    recallstream_version.cache_clear()
    yield
    recallstream_version.cache_clear()


def not_installed(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def test_an_installed_package_says_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"recallstream": "7.8.9"}.__getitem__)
    assert recallstream_version() == "7.8.9"


def test_a_checkout_that_is_not_installed_says_the_version_of_its_project_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", not_installed)
    assert recallstream_version() == tomllib.loads(PROJECT.read_text())["project"]["version"]


def test_bare_packages_say_that_their_version_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata, "version", not_installed)
    monkeypatch.setattr(version, "_PROJECT", tmp_path / "pyproject.toml")
    assert recallstream_version() == "unknown"
