"""Requests through the embedded broker and back, with a fake engine."""

from tests.consumer.serving_harness import harness


def test_a_request_is_answered_with_its_items_headers_and_key() -> None:
    with harness() as made:
        made.member()
        made.send("r1", headers={"correlation-id": b"\xff\x00id"}, history=[7, 8, 9])
        made.flush()
        (reply,) = made.replies.wait(1)
        assert reply.reply.request_id == "r1"
        assert reply.reply.status == "ok"
        assert list(reply.reply.items) == [10, 11, 12]
        assert reply.key == b"user"
        assert reply.headers["correlation-id"] == b"\xff\x00id"
        assert reply.headers["request-topic"] == b"recall.requests"
        assert reply.headers["request-partition"] == b"0"
        assert reply.headers["request-offset"] == b"0"
        assert reply.headers["catalog"] == b"v1"
