"""The two delivery modes, each a publisher for the reply thread and its commits for the intake."""

from collections.abc import Callable, Sequence

from consumer.serving.commits import Commits, StoredCommits, TransactionCommits
from consumer.serving.in_flight import InFlight
from consumer.serving.observer import ServingObserver
from consumer.serving.publisher import AtLeastOnce, Publisher
from consumer.serving.settings import BatchSettings
from consumer.serving.transactional import AnsweredJob, Transactional
from consumer.serving.turns import Turns
from consumer.serving.writer import ReplyWriter, Sent
from consumer.stream.settings import KafkaSettings
from consumer.stream.transactions import TransactionalProducer


def delivery_of(
    kafka: KafkaSettings,
    batch: BatchSettings,
    writer: ReplyWriter,
    confirmed: Callable[[Sequence[InFlight]], None],
    observer: ServingObserver,
    clock: Callable[[], float],
    halted: Callable[[], bool],
) -> tuple[Publisher, Commits]:
    """As ``kafka.delivery`` says. Raises StreamError if the settings are refused."""
    if kafka.delivery == "at-least-once":
        return AtLeastOnce(kafka, writer, confirmed, observer, clock), StoredCommits(batch, clock)
    turns: Turns[AnsweredJob] = Turns(clock)
    producer: TransactionalProducer[Sent] = TransactionalProducer(
        kafka, lambda code: observer.client_error("producer", code), halted
    )
    publisher = Transactional(kafka, turns, writer, producer, confirmed, observer, clock)
    return publisher, TransactionCommits(turns, kafka.brokers_down_limit_s)
