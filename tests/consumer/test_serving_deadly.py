"""A request that ends every process that gives it to its engine."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.consumer.serving_harness import Harness, harness, now_ms
from tests.consumer.waiting import eventually

DEADLY = 7
LIFE_MS = 8_000


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def statuses(made: Harness) -> dict[str | None, str]:
    return {received.reply.request_id: received.reply.status for received in made.replies.poll()}


def test_a_request_that_kills_its_process_does_so_until_its_deadline_and_no_longer(made: Harness) -> None:
    made.send("deadly", top_k=DEADLY, deadline_ms=now_ms() + LIFE_MS)
    made.send("behind it", deadline_ms=now_ms() + 60_000)
    made.flush()
    settings = {"kafka": made.kafka().model_dump(mode="json"), "batch": {"max_requests": 1}, "slow": 0.0}
    command = [sys.executable, "-m", "tests.consumer.serving_process", json.dumps({**settings, "deadly": DEADLY})]
    deaths = 0
    while "behind it" not in statuses(made):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
            try:
                eventually(lambda child=child: child.poll() is not None or "behind it" in statuses(made), 60.0)  # type: ignore[misc]  # bound early
                deaths += child.poll() == -signal.SIGKILL
                if child.poll() is None:
                    eventually(lambda: made.committed() == 2)
            finally:
                child.kill()
    assert deaths >= 1
    assert statuses(made) == {"deadly": "expired", "behind it": "ok"}
