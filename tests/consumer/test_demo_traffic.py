import asyncio
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from consumer.client import RecallClient, RecallTimeoutError
from consumer.demo.movielens import load_movielens
from consumer.demo.traffic import Answer, HistorySender, Load
from consumer.wire.reply import RecallReply, ReplyFault
from tests.consumer.film_files import write_film_files


def test_a_load_sends_the_users_in_turn_and_never_more_than_its_concurrency() -> None:
    in_the_air = most = 0

    async def send(user: int) -> Answer:
        nonlocal in_the_air, most
        in_the_air += 1
        most = max(most, in_the_air)
        try:
            await asyncio.sleep(0)
        finally:
            in_the_air -= 1
        return Answer(user, None, None, 0.0)

    async def run() -> list[int]:
        async with Load(send, [1, 2, 3], concurrency=2) as load:
            assert await load.until(lambda answers: len(answers) >= 7, timeout=10)
        return [answer.user for answer in load.answers[:7]]

    assert asyncio.run(run()) == [1, 2, 3, 1, 2, 3, 1]
    assert most == 2
    assert in_the_air == 0  # the rest was cancelled with the load


def test_waiting_for_what_does_not_come_ends_at_the_timeout() -> None:
    async def send(user: int) -> Answer:
        await asyncio.sleep(0)
        return Answer(user, None, None, 0.0)

    async def run() -> bool:
        async with Load(send, [1], concurrency=1) as load:
            return await load.until(lambda answers: False, timeout=0.05)

    assert asyncio.run(run()) is False


def test_a_bug_in_the_sender_is_raised_where_the_load_ends() -> None:
    async def send(user: int) -> Answer:
        raise ZeroDivisionError

    async def run() -> None:
        async with Load(send, [1], concurrency=1) as load:
            await load.until(lambda answers: bool(answers), timeout=0.05)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


class FakeClient:
    def __init__(self, result: RecallReply | Exception) -> None:
        self.result = result
        self.options: dict[str, Any] = {}

    async def recall(self, **options: Any) -> RecallReply:
        self.options = options
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def send_one(tmp_path: Path, client: FakeClient) -> Answer:
    data = load_movielens(write_film_files(tmp_path, 9, {"a": [4, 1, 5]}))
    return asyncio.run(HistorySender(cast(RecallClient, client), data, timeout=3.0)(0))


def reply(**fields: Any) -> RecallReply:
    return RecallReply(v=1, request_id="r", scores=np.zeros(1, np.float32), **fields)


def test_the_newest_event_is_neither_sent_nor_excluded(tmp_path: Path) -> None:
    client = FakeClient(reply(status="ok", items=np.array([5]), catalog="v1"))
    answer = send_one(tmp_path, client)
    assert client.options["history"].tolist() == [4, 1]
    assert client.options["exclude"].tolist() == [4, 1]
    assert answer.items == (5,)
    assert answer.catalog == "v1"
    assert answer.fault is None


def test_a_refusal_and_a_timeout_are_faults_not_answers(tmp_path: Path) -> None:
    late = reply(status="expired", error=ReplyFault("expired", "too late"))
    for result, fault in ((late, "expired: too late"), (RecallTimeoutError("no reply within 3 s"), "no reply")):
        answer = send_one(tmp_path, FakeClient(result))
        assert fault in (answer.fault or "")
        assert answer.items == ()
