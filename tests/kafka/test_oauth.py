"""Log-in by token on a real broker that ends every session with its token."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.stream.settings import KafkaSettings
from deploy.kafka.cluster import KafkaCluster
from deploy.kafka.install import Installation
from tests.consumer.unsecured_jwt import unsecured_jwt
from tests.consumer.waiting import eventually
from tests.kafka.real_harness import RealHarness, real_harness

pytestmark = pytest.mark.kafka

LIFETIME_S = 15.0
"""The client renews a token at 80 % of its life and its session at 90 %; the broker takes no two in one second."""
IDLE_S = 35.0
SHORT_S = 5.0
LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
OPTIONS = {
    "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f'{LOGIN} required unsecuredLoginStringClaim_sub="b";',
    "connections.max.reauth.ms": "3600000",  # from now on a session ends with its token
}


@pytest.fixture(scope="module")
def tokens(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker that takes tokens which nobody has signed."""
    state = tmp_path_factory.mktemp("tokens") / "state"
    with KafkaCluster(installation, state, secured=True, options=OPTIONS) as cluster:
        yield cluster


@pytest.fixture
def made(tokens: KafkaCluster) -> Iterator[RealHarness]:
    with real_harness(tokens) as each:
        yield each


def login(made: RealHarness, **oauth: object) -> KafkaSettings:
    return made.kafka(
        bootstrap_servers=f"127.0.0.1:{made.cluster.nodes[0].sasl_port}",
        security_protocol="sasl_plaintext",
        sasl_mechanism="OAUTHBEARER",
        authentication_limit_s=3.0,
        oauth=oauth,
    )


@pytest.mark.stress
@pytest.mark.timeout(120)
def test_an_idle_member_renews_its_token_before_it_ends(made: RealHarness, tmp_path: Path) -> None:
    log = tmp_path / "tokens.log"
    command = (sys.executable, "-m", "tests.consumer.unsecured_jwt", str(LIFETIME_S), str(log))
    member = made.member(kafka=login(made, token_command=command))
    begun, before = time.monotonic(), len(log.read_text().splitlines())
    eventually(lambda: time.monotonic() - begun > IDLE_S, 90.0)
    clients = 3  # the consumer, its administrator, the producer
    assert len(log.read_text().splitlines()) - before >= 2 * clients
    made.send("after")
    made.flush()
    made.replies.wait(1)
    eventually(lambda: made.committed() == 1)
    assert "consumer:_AUTHENTICATION" not in member.events.count
    assert "lost" not in member.events.count
    assert member.loop.failure is None


def test_a_token_that_nobody_renews_ends_the_process(made: RealHarness, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(unsecured_jwt(SHORT_S))
    member = made.member(kafka=login(made, token_file=token))
    made.send("before")
    made.flush()
    made.replies.wait(1)
    failure = eventually(lambda: member.loop.failure, 60.0)
    assert "refuse our credentials" in failure
    assert token.read_text() not in failure
    assert member.stop() == 1
