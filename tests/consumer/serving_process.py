"""A serving loop in a process of its own, for tests of signals: ``python -m tests.consumer.serving_process SETTINGS``.

``SETTINGS`` is JSON: ``kafka`` and ``batch`` settings, ``slow`` seconds that every batch takes, and the ``top_k`` of a
request that kills the process (``deadly``, or none). Prints ``ready`` once it owns partitions, and ``running`` when the
engine takes a batch; its exit code is the loop's.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence

from consumer.serving.service import ServingLoop
from consumer.serving.settings import BatchSettings
from consumer.stream.settings import KafkaSettings
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.request import RecallRequest
from tests.consumer.fake_engine import FakeEngine
from tests.consumer.waiting import eventually


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main() -> int:
    settings = json.loads(sys.argv[1])

    def slow(requests: Sequence[RecallRequest]) -> None:
        say("running")
        if any(request.top_k == settings.get("deadly") for request in requests):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(settings["slow"])

    loop = ServingLoop(
        FakeEngine(fault=slow),
        kafka=KafkaSettings.model_validate(settings["kafka"]),
        batch=BatchSettings.model_validate(settings["batch"]),
        limits=WireLimits(),
        defaults=RecallDefaults(top_k=3, width=4, deadline_ms=60_000),
    )
    loop.start()
    eventually(lambda: loop.snapshot().partitions)
    say("ready")
    return loop.run_until_stopped()


if __name__ == "__main__":
    sys.exit(main())
