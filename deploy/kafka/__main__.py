"""``python -m deploy.kafka``: a real Apache Kafka with the default topics, until Ctrl-C."""

import argparse
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from consumer.cli.catalog.follow import Follow
from consumer.stream.settings import KafkaSettings
from deploy.kafka.cluster import KafkaCluster
from deploy.kafka.install import DEFAULT_HOME, INSTALLED, BrokerError, install

PARTITIONS = 6


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.kafka",
        description="A real Apache Kafka with the default topics, until Ctrl-C.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 2, 3), help="how many")
    parser.add_argument("--port", type=int, default=9092, help="of the first broker; the others take the next ones")
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="jars and, in it, state; remove to begin anew")
    asked = parser.parse_args()
    console = Console(stderr=True)
    try:
        if not (asked.home / INSTALLED).exists():
            console.print("fetching Kafka's jars with Maven; the first time takes a minute")
        installation = install(asked.home)
        state = asked.home / f"state-{asked.brokers}"
        ports = [asked.port + number for number in range(asked.brokers)]
        with KafkaCluster(installation, state, brokers=asked.brokers, ports=ports) as cluster:
            made = create_default_topics(cluster)
            console.print(f"Kafka on {cluster.bootstrap_servers}, topics {', '.join(made)}, state in {state}")
            while not (ended := cluster.ended()):
                time.sleep(0.5)
            console.print(f"kafka: {ended}")
            sys.exit(1)
    except KeyboardInterrupt:
        return
    except BrokerError as error:
        console.print(f"kafka: {error}")
        sys.exit(1)


def create_default_topics(cluster: KafkaCluster) -> list[str]:
    """The topics that `serve` and `catalog follow` have by default, where they are not there yet."""
    defaults = KafkaSettings()
    wanted = {defaults.request_topic: PARTITIONS, defaults.reply_topic: PARTITIONS, defaults.dead_letter_topic: 1}
    wanted[Follow.model_fields["topic"].default] = 1
    known = cluster.admin.list_topics(timeout=10).topics
    if new := {name: count for name, count in wanted.items() if name not in known}:
        cluster.create_topics(new)
    return list(wanted)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
