"""A request that ends every process that gives it to its engine."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.consumer.serving_harness import Harness, harness, now_ms
from tests.consumer.waiting import eventually

DEADLY = 7
LIFE_MS = 6_000


@pytest.fixture
def made() -> Iterator[Harness]:
    with harness() as each:
        yield each


def statuses(made: Harness) -> dict[str | None, str]:
    return {received.reply.request_id: received.reply.status for received in made.replies.poll()}


@contextmanager
def process(made: Harness) -> Iterator[subprocess.Popen[str]]:
    settings = {"kafka": made.kafka().model_dump(mode="json"), "batch": {"max_requests": 1}, "slow": 0.0}
    command = [sys.executable, "-m", "tests.consumer.serving_process", json.dumps({**settings, "deadly": DEADLY})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def test_a_request_that_kills_its_process_does_so_until_its_deadline_and_no_longer(made: Harness) -> None:
    with process(made) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        made.send("deadly", top_k=DEADLY, deadline_ms=now_ms() + LIFE_MS)
        made.send("behind it", deadline_ms=now_ms() + 60_000)
        made.flush()
        assert first.wait(30) == -signal.SIGKILL
    assert made.committed() <= 0
    while "behind it" not in statuses(made):
        with process(made) as child:
            eventually(lambda child=child: child.poll() is not None or "behind it" in statuses(made), 60.0)  # type: ignore[misc]  # bound early
            if child.poll() is None:
                eventually(lambda: made.committed() == 2)
    assert statuses(made) == {"deadly": "expired", "behind it": "ok"}
