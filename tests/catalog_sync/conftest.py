from collections.abc import Iterator

import pytest

from catalog_sync.embedded import EmbeddedRedis


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    """A Redis for the tests of one file; each test uses a namespace of its own."""
    with EmbeddedRedis() as running:
        yield running
