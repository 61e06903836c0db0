"""The command line with a device that is lost once, at the first request for ``FATAL_TOP_K`` items.

``DEVICE_LOST`` names the file that says that it has happened. Processes started by this one import it, too.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consumer.cli.main import main

FATAL_TOP_K = 3
DEVICE_LOST = "DEVICE_LOST"


def lose_the_device_once() -> None:
    from engine.errors import DeviceError
    from engine.recall_engine import RecallEngine
    from engine.request import RecallRequest

    submit, mark = RecallEngine.submit, Path(os.environ[DEVICE_LOST])

    def faulty(engine: RecallEngine, requests: Sequence[RecallRequest], **how: bool) -> Any:
        if not mark.exists() and any(request.top_k == FATAL_TOP_K for request in requests):
            mark.touch(exist_ok=False)
            raise DeviceError("the GPU fell off the bus")
        return submit(engine, requests, **how)

    RecallEngine.submit = faulty  # type: ignore[method-assign, assignment]  # a lost device cannot be had otherwise


if __name__ == "__mp_main__":
    lose_the_device_once()
elif __name__ == "__main__":
    sys.exit(main())
