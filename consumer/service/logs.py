"""Logging set-up: to standard error, as text or as one JSON object a line."""

import json
import logging
import sys
from datetime import UTC, datetime

from consumer.service.settings import LogSettings
from consumer.stream.client_log import OncePerPause

TEXT = "%(asctime)s %(levelname)-7s {process}%(threadName)s %(name)s: %(message)s"


_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


class TextFormatter(logging.Formatter):
    """One line a message: what a request says of itself can neither forge lines nor steer a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        record.message = record.message.translate(_CONTROLS)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``thread``, ``message``; ``exception`` if there is
    one, ``process`` if it has a name.
    """

    def __init__(self, process: str | None = None) -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._process,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure_logging(settings: LogSettings, process: str | None = None) -> None:
    """Send every logger of the process to standard error, without the Kafka client's repeats. Replaces what was there.

    ``process``: its name in each line, where several write to the same place.
    """
    text = TEXT.format(process=f"{process} " if process else "")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if settings.format == "json" else TextFormatter(text))
    handler.addFilter(OncePerPause())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
