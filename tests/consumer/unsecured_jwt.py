"""Tokens that nobody signed: ``python -m tests.consumer.unsecured_jwt SECONDS LOG`` prints one and notes it in LOG."""

import base64
import json
import sys
import time
from pathlib import Path


def unsecured_jwt(lifetime: float, subject: str = "alice") -> str:
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + lifetime})
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), ""])


if __name__ == "__main__":
    with Path(sys.argv[2]).open("a") as log:
        log.write(f"{time.time()}\n")
    sys.stdout.write(unsecured_jwt(float(sys.argv[1])) + "\n")
