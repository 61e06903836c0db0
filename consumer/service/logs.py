"""Logging set-up: to standard error, as text or as one JSON object a line."""

import json
import logging
import sys
from datetime import UTC, datetime

from consumer.service.settings import LogSettings

TEXT = "%(asctime)s %(levelname)-7s %(threadName)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``thread``, ``message``, ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure_logging(settings: LogSettings) -> None:
    """Send every logger of the process to standard error. Replaces what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
