"""A real Apache Kafka of one to three nodes on loopback ports: start, stop, kill, start again."""

import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its type hints re-export little
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from deploy.kafka.install import START_S, BrokerError, Installation, answers, await_it, free_port, last_words
from deploy.kafka.keystore import make_keystore
from deploy.kafka.layout import Node, meta_properties, new_id, server_properties

_STOP_S = 20.0
_ADMIN_S = 10.0
_SCRAM_ITERATIONS = 4096


class KafkaCluster:
    """Its state is kept in ``directory``: the same one starts it again, with the same ports if they are given.

    ``ports``: one for each broker, free ones if left out. ``secured`` adds the SASL listeners, plain and over TLS.
    ``options`` are more broker settings. Use as a context manager, or through ``start`` and ``stop``. Brokers are named
    by their number from 1. Raises BrokerError.
    """

    def __init__(
        self,
        installation: Installation,
        directory: Path,
        *,
        brokers: int = 1,
        ports: Sequence[int] = (),
        secured: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= brokers <= 3:
            raise BrokerError("a cluster has one to three brokers")
        self._installation = installation
        self._directory = directory
        self._secured = secured
        self._options = {} if options is None else options
        self._ports = tuple(ports) or tuple(free_port() for _ in range(brokers))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.certificate: Path | None = None
        self.nodes: tuple[Node, ...] = tuple(
            Node(number, port, *(free_port() for _ in range(3))) for number, port in enumerate(self._ports, 1)
        )

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.nodes)

    @property
    def log(self) -> Path:
        """Of the first broker."""
        return self._log(self.nodes[0])

    @cached_property
    def admin(self) -> AdminClient:
        """A client of these brokers; it lives as long as the cluster, or its answers would be lost."""
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def start(self) -> Self:
        """Format what is not, start every broker, wait until all serve."""
        self._directory.mkdir(parents=True, exist_ok=True)
        keystore = None
        if self._secured:
            keystore, self.certificate = make_keystore(self._directory)
        cluster_id = new_id()
        for node in self.nodes:
            data = self._directory / f"data-{node.id}"
            if not data.exists():
                shutil.copytree(self._installation.template, data)
                (data / "meta.properties").write_text(meta_properties(node, cluster_id))
            text = server_properties(node, self.nodes, data, keystore, self._options)
            self._properties(node).write_text(text)
        try:
            for node in self.nodes:
                self.start_broker(node.id, wait=False)
            self.wait_until_served()
        except BaseException:
            self.stop()
            raise
        return self

    def start_broker(self, number: int, *, wait: bool = True) -> None:
        """Start one that does not run."""
        node = self._node(number)
        if answers(node.port):
            raise BrokerError(f"port {node.port} is taken")
        command = self._installation.java("kafka.Kafka", str(self._properties(node)))
        with self._log(node).open("ab") as log:
            self._running[number] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the program, which then stops the brokers itself
            )
        if wait:
            self.wait_until_served()

    def stop_broker(self, number: int, timeout: float = _STOP_S) -> None:
        """SIGTERM: it hands its partitions over; SIGKILL if that takes longer than ``timeout`` seconds."""
        process = self._running[number]
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        del self._running[number]

    def kill_broker(self, number: int) -> None:
        """SIGKILL."""
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End every broker; what was written is kept. Safe to call twice."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for number in list(self._running):
            self.stop_broker(number, timeout=5.0)

    def wait_until_served(self) -> None:
        """Until every broker that was started is known to the others. Raises BrokerError if one has ended."""

        def served() -> bool:
            if ended := self.ended():
                raise BrokerError(ended)
            try:
                return set(self._running) <= set(self.admin.list_topics(timeout=1.0).brokers)
            except KafkaException:
                return False

        await_it(served, START_S, "start", self.log)

    def running(self, number: int) -> bool:
        """Whether a broker was started and neither stopped nor killed since."""
        return number in self._running

    def ended(self) -> str | None:
        """What became of a broker that ended by itself."""
        for number, process in self._running.items():
            if process.poll() is not None:
                return f"broker {number} ended: {last_words(self._log(self._node(number)))}"
        return None

    def create_topics(self, topics: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
        """Topics with their number of partitions, on up to three brokers each; waits until every one has leaders."""
        copies = min(3, len(self.nodes))
        new = [NewTopic(name, count, copies, config=dict(config or {})) for name, count in topics.items()]
        try:
            for done in self.admin.create_topics(new, operation_timeout=_ADMIN_S).values():
                done.result(_ADMIN_S)
        except KafkaException as error:
            raise BrokerError(f"topics were not created: {error.args[0].str()}") from error

        def led() -> bool:
            known = self.admin.list_topics(timeout=_ADMIN_S).topics
            return all(name in known and _is_led(known[name], count) for name, count in topics.items())

        await_it(led, START_S, "leaders of new topics", self.log)

    def add_user(self, name: str, password: str) -> None:
        """A SCRAM-SHA-512 user of the SASL listeners, known once this returns."""
        mechanism = ScramMechanism.SCRAM_SHA_512
        user = UserScramCredentialUpsertion(
            name, ScramCredentialInfo(mechanism, _SCRAM_ITERATIONS), password.encode(), new_id().encode()
        )
        for done in self.admin.alter_user_scram_credentials([user]).values():
            done.result(_ADMIN_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _node(self, number: int) -> Node:
        return self.nodes[number - 1]

    def _properties(self, node: Node) -> Path:
        return self._directory / f"server-{node.id}.properties"

    def _log(self, node: Node) -> Path:
        return self._directory / f"broker-{node.id}.log"


def _is_led(topic: object, partitions: int) -> bool:
    found = getattr(topic, "partitions", {})
    return len(found) == partitions and all(each.leader >= 0 for each in found.values())
