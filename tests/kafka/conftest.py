"""One secured broker for all tests of a run; a test that hurts it starts it again."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.kafka.cluster import KafkaCluster
from deploy.kafka.install import Installation, install, missing
from tests.kafka.real_harness import RealHarness, real_harness


@pytest.fixture(scope="session")
def installation() -> Installation:
    if reason := missing():
        pytest.skip(reason)
    return install()


@pytest.fixture(scope="session")
def broker(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(installation, tmp_path_factory.mktemp("broker") / "state", secured=True) as cluster:
        yield cluster


@pytest.fixture
def three_brokers(installation: Installation, tmp_path: Path) -> Iterator[KafkaCluster]:
    with KafkaCluster(installation, tmp_path / "brokers", brokers=3) as cluster:
        yield cluster


@pytest.fixture
def made(broker: KafkaCluster) -> Iterator[RealHarness]:
    """Topics with one partition of requests."""
    with real_harness(broker) as each:
        yield each


@pytest.fixture
def wide(broker: KafkaCluster) -> Iterator[RealHarness]:
    """Topics with four partitions of requests."""
    with real_harness(broker, partitions=4) as each:
        yield each


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=10, help="how many members the stress test kills")
    parser.addoption("--seed", type=int, default=None, help="of the stress test's choices; a new one if left out")
    parser.addoption("--record", action="store_true", help="write measured figures to benchmarks/results")


@pytest.fixture
def kills(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--kills", 10))


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    given = pytestconfig.getoption("--seed", None)
    return random.randrange(1_000_000) if given is None else int(given)


@pytest.fixture
def record(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--record", False))
