"""A user of the secured broker, its log-in and its rights."""

from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its type hints re-export little
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
)

from consumer.stream.settings import KafkaSettings
from deploy.kafka.cluster import KafkaCluster
from tests.kafka.real_harness import RealHarness

USER, PASSWORD = "alice", "wonderland"


def login(made: RealHarness, **changes: Any) -> KafkaSettings:
    """SCRAM over TLS."""
    secure = {
        "bootstrap_servers": f"127.0.0.1:{made.cluster.nodes[0].sasl_ssl_port}",
        "security_protocol": "sasl_ssl",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": USER,
        "sasl_password": PASSWORD,
        "ssl_ca_location": str(made.cluster.certificate),
    }
    return made.kafka(**{**secure, **changes})


def allow(cluster: KafkaCluster, kind: Any, name: str, *operations: AclOperation) -> None:
    """From now on nobody may do anything else with ``name``, unless allowed too."""
    _rule(cluster, kind, name, operations, AclPermissionType.ALLOW)


def deny(cluster: KafkaCluster, kind: Any, name: str, *operations: AclOperation) -> None:
    _rule(cluster, kind, name, operations, AclPermissionType.DENY)


def _rule(
    cluster: KafkaCluster, kind: Any, name: str, operations: tuple[AclOperation, ...], permission: AclPermissionType
) -> None:
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", each, permission)
        for each in operations
    ]
    for done in cluster.admin.create_acls(rules).values():
        done.result(10)
