"""Where the nodes of a cluster listen, and the settings that they are started with."""

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"

_SMALL = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "num.network.threads": "2",
    "num.io.threads": "2",
}
"""Quick to start and small; the shortest times that tests ask of a group are allowed."""
_PROTOCOL = {"CONTROLLER": "PLAINTEXT"}


@dataclass(frozen=True, slots=True)
class Node:
    """One broker that is a controller as well; the secure ports are used only by a secured cluster."""

    id: int
    port: int
    controller_port: int
    sasl_port: int = 0
    sasl_ssl_port: int = 0

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


def server_properties(
    node: Node,
    nodes: Sequence[Node],
    data: Path,
    keystore: Path | None = None,
    options: Mapping[str, str] | None = None,
) -> str:
    """The ``server.properties`` of ``node``. With a PKCS12 ``keystore`` it also listens for SCRAM users, plain and
    over TLS, and denies what access rules deny; whoever comes by the plain port may do everything."""
    copies = str(min(3, len(nodes)))
    in_sync = str(min(2, len(nodes)))
    listeners = {"PLAINTEXT": node.port, "CONTROLLER": node.controller_port}
    secure = {}
    if keystore is not None:
        listeners |= {"SASL_PLAINTEXT": node.sasl_port, "SASL_SSL": node.sasl_ssl_port}
        secure = _secure(keystore)
    at = {name: f"{name}://{HOST}:{port}" for name, port in listeners.items()}
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": ",".join(f"{each.id}@{HOST}:{each.controller_port}" for each in nodes),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": ",".join(f"{name}:{_PROTOCOL.get(name, name)}" for name in listeners),
        "listeners": ",".join(at.values()),
        "advertised.listeners": ",".join(url for name, url in at.items() if name != "CONTROLLER"),
        "log.dirs": str(data),
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        **_SMALL,
        **secure,
        **(options or {}),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def meta_properties(node: Node, cluster_id: str) -> str:
    """The identity that a formatted directory carries."""
    return f"version=1\ncluster.id={cluster_id}\nnode.id={node.id}\ndirectory.id={new_id()}\n"


def new_id() -> str:
    """A random id as Kafka writes them."""
    return "r" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


def _secure(keystore: Path) -> dict[str, str]:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    return {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": login,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": login,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.password": KEYSTORE_PASSWORD,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }


KEYSTORE_PASSWORD = "throw-away"  # noqa: S105 - of a key that is made for one cluster on the loopback address
