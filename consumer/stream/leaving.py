"""How a member leaves its group."""

import sys
import threading

from confluent_kafka import Consumer

from consumer.stream.errors import StreamError


def leave_group(consumer: Consumer, budget: float) -> bool:
    """Close the client, which asks its listener to give up its partitions first.

    False: it takes longer than ``budget`` seconds, for the client waits for the brokers' answer to a commit. It goes on
    in a thread of its own, which the end of the process does not wait for. Raises StreamError.
    """
    failures: list[object] = []

    def close() -> None:
        try:
            consumer.close()
        except:  # noqa: E722  a misused client can raise an object that is no BaseException
            failures.append(sys.exc_info()[1])

    leaving = threading.Thread(target=close, name="leave", daemon=True)
    leaving.start()
    leaving.join(budget)
    if failures:
        raise StreamError(f"the group was not left: {failures[0]}")
    return not leaving.is_alive()
