"""The request-reply client on a mock broker: concurrency, a shared reply topic, errors as data or as exceptions."""

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pytest
from confluent_kafka import KafkaError

from consumer.client import RecallClient, RecallError, RecallTimeoutError, ReplyError, TransportError
from consumer.stream.client_transport import ClientTransport
from consumer.stream.mock_cluster import CLIENT_SETTINGS, Api, MockCluster
from consumer.stream.settings import KafkaSettings
from consumer.wire.reply import encode_error, encode_reply
from consumer.wire.request import decode
from consumer.wire.settings import WireLimits
from engine.request import RecallResult
from tests.consumer.echo_service import Answer, echo_service
from tests.consumer.raw_record import send_with_header_name

LIMITS = WireLimits()


TESTS = 20
"""Each test has topics of its own, all created at the start: a mock that is idle takes a second for one."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    topics = [(f"requests-{n}", 1) for n in range(TESTS)] + [(f"replies-{n}", 3) for n in range(TESTS)]
    with MockCluster(dict(topics)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(TESTS))


@pytest.fixture
def kafka(cluster: MockCluster, numbers: Iterator[int]) -> KafkaSettings:
    """A request topic of one partition and a reply topic of three."""
    number = next(numbers)
    return KafkaSettings(
        bootstrap_servers=cluster.bootstrap_servers,
        request_topic=f"requests-{number}",
        reply_topic=f"replies-{number}",
        consumer_options=dict(CLIENT_SETTINGS),
    )


def reversed_history(value: bytes, key: bytes | None) -> list[bytes]:
    """The history backwards, as a reply: shows whose answer it is."""
    wire = decode(value, key=key, limits=LIMITS)
    assert isinstance(wire.history, np.ndarray)
    items = wire.history[::-1]
    result = RecallResult(
        items=items,
        scores=-np.arange(len(items), dtype=np.float32),
        sids=np.stack([items, items + 1], axis=1).astype(np.int32),
        fields={"title": [f"item {item}" for item in items]},
        model="m1",
        catalog="c1",
        beam_widths=(4, 4),
        exhausted=False,
    )
    return [encode_reply(wire, result, queue_ms=1.0, total_ms=2.0)]


def answering(code: str) -> Answer:
    return lambda value, key: [encode_error(decode(value, key=key, limits=LIMITS), code, "no luck")]  # type: ignore[arg-type]  # a protocol code


def test_a_request_is_answered_with_its_items_scores_sids_and_fields(kafka: KafkaSettings) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            reply = await client.recall(history=[3, 1, 2], user_id="u", labels={"arm": "b"}, request_id="r-1")
        assert (reply.request_id, reply.user_id, reply.labels, reply.status) == ("r-1", "u", {"arm": "b"}, "ok")
        assert np.array_equal(reply.items, [2, 1, 3])
        assert np.array_equal(reply.scores, np.array([0, -1, -2], np.float32))
        assert reply.sids is not None
        assert np.array_equal(reply.sids, [[2, 3], [1, 2], [3, 4]])
        assert reply.fields == {"title": ["item 2", "item 1", "item 3"]}
        assert (reply.model, reply.catalog, reply.beam_widths) == ("m1", "c1", (4, 4))

    with echo_service(kafka.bootstrap_servers, kafka.request_topic, reversed_history):
        asyncio.run(ask())


@pytest.mark.parametrize("own_partition", [False, True])
def test_three_clients_on_one_reply_topic_each_get_their_own_answers(kafka: KafkaSettings, own_partition: bool) -> None:
    async def ask() -> None:
        clients = [RecallClient(kafka, reply_partition=n if own_partition else None) for n in range(3)]
        async with clients[0], clients[1], clients[2]:
            asked = [(n, m) for m in range(40) for n in range(3)]
            replies = await asyncio.gather(
                *(clients[n].recall(history=[n, m], user_id=f"user {m}", request_id="same") for n, m in asked)
            )
        assert [reply.items.tolist() for reply in replies] == [[m, n] for n, m in asked]  # type: ignore[union-attr]  # int ids

    with echo_service(kafka.bootstrap_servers, kafka.request_topic, reversed_history) as seen:
        asyncio.run(ask())
    ids = {headers.correlation_id for headers in seen}
    assert len(ids) == 120
    assert any(byte > 127 for one in ids if one for byte in one), "correlation ids are binary"
    assert {headers.reply_partition for headers in seen} == ({0, 1, 2} if own_partition else {None})


def test_a_request_carries_the_callers_trace(kafka: KafkaSettings) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def ask() -> None:
        async with RecallClient(kafka) as client:
            await client.recall(history=[1])
            await client.recall(history=[1], traceparent=trace)

    with echo_service(kafka.bootstrap_servers, kafka.request_topic, reversed_history) as seen:
        asyncio.run(ask())
    assert [headers.traceparent for headers in seen] == [None, trace.encode()]


def test_repeated_replies_count_once(kafka: KafkaSettings) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            for m in range(5):
                reply = await client.recall(history=[m])
                assert np.array_equal(reply.items, [m])

    with echo_service(kafka.bootstrap_servers, kafka.request_topic, lambda v, k: reversed_history(v, k) * 3):
        asyncio.run(ask())


def test_an_error_reply_raises_with_code_and_message(kafka: KafkaSettings) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            with pytest.raises(RecallError, match="no luck") as caught:
                await client.recall(history=[1], labels={"a": "b"})
        assert caught.value.code == "unknown_catalog"
        assert caught.value.reply.labels == {"a": "b"}

    with echo_service(kafka.bootstrap_servers, kafka.request_topic, answering("unknown_catalog")):
        asyncio.run(ask())


@pytest.mark.parametrize(("code", "status"), [("expired", "expired"), ("overloaded", "rejected")])
def test_expired_and_rejected_replies_are_data(kafka: KafkaSettings, code: str, status: str) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            reply = await client.recall(history=[1])
        assert reply.status == status
        assert reply.error is not None
        assert reply.error.code == code
        assert len(reply.items) == 0

    with echo_service(kafka.bootstrap_servers, kafka.request_topic, answering(code)):
        asyncio.run(ask())


def test_without_a_reply_the_request_times_out_and_the_client_goes_on(kafka: KafkaSettings) -> None:
    def only_long(value: bytes, key: bytes | None) -> list[bytes]:
        wire = decode(value, key=key, limits=LIMITS)
        return [] if wire.history is None or len(wire.history) == 1 else reversed_history(value, key)

    async def ask() -> None:
        async with RecallClient(kafka) as client:
            with pytest.raises(RecallTimeoutError, match=r"no reply within 0\.2 s"):
                await client.recall(history=[1], timeout=0.2)
            assert np.array_equal((await client.recall(history=[1, 2])).items, [2, 1])

    with echo_service(kafka.bootstrap_servers, kafka.request_topic, only_long):
        asyncio.run(ask())


def test_the_deadline_defaults_to_the_clients_patience(kafka: KafkaSettings) -> None:
    deadlines: list[int | None] = []

    def note(value: bytes, key: bytes | None) -> list[bytes]:
        deadlines.append(decode(value, key=key, limits=LIMITS).deadline_ms)
        return reversed_history(value, key)

    async def ask() -> None:
        async with RecallClient(kafka) as client:
            await client.recall(history=[1], timeout=5)
            await client.recall(history=[1], deadline_ms=7)

    before = time.time() * 1000
    with echo_service(kafka.bootstrap_servers, kafka.request_topic, note):
        asyncio.run(ask())
    assert deadlines[0] is not None
    assert before + 4_999 <= deadlines[0] <= time.time() * 1000 + 5_000
    assert deadlines[1] == 7


def test_a_reply_that_is_none_raises(kafka: KafkaSettings) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            with pytest.raises(ReplyError, match="not a reply"):
                await client.recall(history=[1])

    with echo_service(kafka.bootstrap_servers, kafka.request_topic, lambda value, key: [b"\xc1"]):
        asyncio.run(ask())


def test_options_that_cannot_be_written_raise_before_anything_is_sent(kafka: KafkaSettings) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            with pytest.raises(TypeError, match="history: item ids must be all ints or all strings"):
                await client.recall(history=[1.5])  # type: ignore[arg-type]  # the point of the test
            with pytest.raises(OverflowError):
                await client.recall(tokens=[2**31])
            with pytest.raises(TypeError, match="user_id: must be a string"):
                await client.recall(history=[1], user_id=7)  # type: ignore[arg-type]  # the point of the test
            with pytest.raises(UnicodeEncodeError):
                await client.recall(history=[1], user_id="\ud800")

    with echo_service(kafka.bootstrap_servers, kafka.request_topic, reversed_history) as seen:
        asyncio.run(ask())
    assert seen == []


def test_a_missing_reply_topic_or_partition_is_said_on_entry(kafka: KafkaSettings) -> None:
    async def enter(settings: KafkaSettings, partition: int | None = None) -> None:
        async with RecallClient(settings, reply_partition=partition):
            pass

    with pytest.raises(TransportError, match="reply topic nowhere"):
        asyncio.run(enter(kafka.model_copy(update={"reply_topic": "nowhere"})))
    with pytest.raises(TransportError, match="has no partition 7"):
        asyncio.run(enter(kafka, 7))


def test_an_unreachable_broker_is_said_on_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer.stream.client_transport.CONNECT_S", 0.5)

    async def enter() -> None:
        async with RecallClient(KafkaSettings(bootstrap_servers="127.0.0.1:1")):
            pass

    with pytest.raises(TransportError, match=r"cannot reach Kafka at 127\.0\.0\.1:1"):
        asyncio.run(enter())


def test_leaving_the_client_ends_requests_that_wait(kafka: KafkaSettings) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            waiting = asyncio.create_task(client.recall(history=[1]))
            await asyncio.sleep(0)
        with pytest.raises(TransportError, match="closed"):
            await waiting
        with pytest.raises(TransportError, match="closed"):
            await client.recall(history=[1])

    asyncio.run(ask())


def test_a_request_leaves_at_once_unless_the_settings_say_otherwise() -> None:
    def linger_ms(**producer_options: int) -> object:
        kafka = KafkaSettings.model_validate({"producer_options": producer_options})
        transport = ClientTransport(kafka, None, lambda _headers, _value: None, lambda _failure: None)
        return transport._producer_options()["linger.ms"]  # noqa: SLF001

    assert linger_ms() == 0
    assert linger_ms(**{"linger.ms": 3}) == 3


@pytest.mark.parametrize("options", ["client_options", "producer_options", "consumer_options"])
def test_settings_that_kafkas_client_refuses_are_said_at_once(options: str) -> None:
    async def enter() -> None:
        async with RecallClient(KafkaSettings.model_validate({options: {"no.such.option": 1}})):
            raise AssertionError("entered")

    with pytest.raises(TransportError, match=r"no\.such\.option"):
        asyncio.run(asyncio.wait_for(enter(), 10))


def test_a_client_belongs_to_the_event_loop_that_entered_it_and_is_entered_once(kafka: KafkaSettings) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            with pytest.raises(RuntimeError, match="entered once"):
                await client.__aenter__()
            with pytest.raises(RuntimeError, match="event loop that entered it"):
                await asyncio.to_thread(asyncio.run, client.recall(history=[1]))
            with echo_service(kafka.bootstrap_servers, kafka.request_topic, reversed_history):
                assert np.array_equal((await client.recall(history=[1, 2])).items, [2, 1])

    asyncio.run(ask())


def test_a_record_with_unreadable_headers_does_not_end_the_client(kafka: KafkaSettings) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            send_with_header_name(kafka.bootstrap_servers, kafka.reply_topic, b"stray", b"\xff")
            with echo_service(kafka.bootstrap_servers, kafka.request_topic, reversed_history):
                assert np.array_equal((await client.recall(history=[1, 2])).items, [2, 1])

    asyncio.run(ask())


def test_a_client_outside_async_with_says_so() -> None:
    client = RecallClient(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(TransportError, match="async with"):
        asyncio.run(client.recall(history=[1]))


def test_a_request_that_kafka_does_not_take_raises_at_once(cluster: MockCluster, kafka: KafkaSettings) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            cluster.push_errors(Api.PRODUCE, [KafkaError.MSG_SIZE_TOO_LARGE])
            with pytest.raises(TransportError, match=r"not delivered to requests.*: .*too large"):
                await client.recall(history=[1])
            with pytest.raises(TransportError, match=r"not sent: .*too large"):
                await client.recall(history=range(200_000))

    asyncio.run(ask())


def test_when_replies_can_no_longer_be_read_every_request_fails_at_once(
    cluster: MockCluster, kafka: KafkaSettings
) -> None:
    async def ask() -> None:
        async with RecallClient(kafka) as client:
            waiting = [asyncio.create_task(client.recall(history=[n])) for n in range(3)]
            await asyncio.sleep(0)
            cluster.push_errors(Api.FETCH, [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 3)
            for result in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(result, TransportError)
                assert "replies cannot be read" in str(result)
            with pytest.raises(TransportError, match="replies cannot be read"):
                await client.recall(history=[1])

    try:
        asyncio.run(ask())
    finally:
        cluster.clear_errors(Api.FETCH)
