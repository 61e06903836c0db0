"""The Kafka client's log lines: repeats are counted instead of written."""

import logging

from consumer.stream.client_log import QUIET_S, OncePerPause


class Log:
    """A filter over a clock that the test sets, and what passed it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.passed: list[str] = []
        self._filter = OncePerPause(lambda: self.now)

    def write(self, format_: str, *arguments: object) -> None:
        record = logging.LogRecord("log", logging.ERROR, __file__, 1, format_, arguments, None)
        if self._filter.filter(record):
            self.passed.append(record.getMessage())

    def client(self, message: str, client: str = "consumer-1") -> None:
        self.write("%s [%s] %s", "FAIL", client, message)


def test_a_repeat_is_left_out_whatever_time_it_names() -> None:
    log = Log()
    for milliseconds in range(3):
        log.client(f"b:1/1: refused (after {milliseconds}ms in state CONNECT)")
    assert log.passed == ["FAIL [consumer-1] b:1/1: refused (after 0ms in state CONNECT)"]


def test_after_the_pause_it_is_written_again_with_the_number_left_out() -> None:
    log = Log()
    for _ in range(3):
        log.client("refused")
    log.now += QUIET_S
    log.client("refused")
    assert log.passed == ["FAIL [consumer-1] refused", "FAIL [consumer-1] refused; 2 like it left out"]


def test_another_message_client_or_program_is_not_a_repeat() -> None:
    log = Log()
    log.client("b:1/1: refused")
    log.client("b:2/2: refused")
    log.client("b:1/1: refused", client="consumer-2")
    for _ in range(2):
        log.write("commit: %s", "failed")
    assert len(log.passed) == 5
