"""The Spring program of ``spring/``: compiled once with its jars into an ignored folder, run against a broker."""

import fcntl
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.kafka.install import run

SOURCE = Path(__file__).parent / "spring"
HOME = Path(__file__).parents[2] / ".data" / "spring"
_RUN_S = 60.0


def missing() -> str | None:
    """Why the program cannot be compiled here, or None."""
    lacking = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    return f"{', '.join(lacking)} not on PATH: the Spring client needs a JDK 17 and Maven" if lacking else None


@dataclass(frozen=True, slots=True)
class Matched:
    """What the template gave to the sender of one request."""

    correlation_id: bytes
    partition: int
    value: bytes


def compiled() -> list[str]:
    """The command of the program; Maven fetches what is not there yet. Raises BrokerError."""
    HOME.mkdir(parents=True, exist_ok=True)
    sources = (SOURCE / "pom.xml", *sorted(SOURCE.rglob("*.java")))
    made_from, done = "".join(source.read_text() for source in sources), HOME / "compiled-from"
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != made_from:
            done.unlink(missing_ok=True)
            shutil.rmtree(HOME / "out", ignore_errors=True)
            goals = ["compile", "dependency:copy-dependencies", f"-DoutputDirectory={HOME / 'out' / 'lib'}"]
            run(["mvn", "-q", "-B", "-f", str(SOURCE / "pom.xml"), f"-Dout={HOME / 'out'}", *goals])
            done.write_text(made_from)
    small = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", *small, "-cp", f"{HOME / 'out' / 'classes'}:{HOME / 'out' / 'lib'}/*", "RoundTrip"]


def round_trip(
    bootstrap_servers: str, requests: str, replies: str, partition: int | None, values: Sequence[str]
) -> list[Matched]:
    """Send ``values`` at once; their replies in the same order, read from one partition or from the whole topic."""
    where = [bootstrap_servers, requests, replies, str(-1 if partition is None else partition)]
    ended = subprocess.run([*compiled(), *where, *values], capture_output=True, timeout=_RUN_S, check=False)
    assert ended.returncode == 0, ended.stderr.decode(errors="replace")[-4000:]
    lines = [line.split(b"\t", 2) for line in ended.stdout.splitlines()]
    return [Matched(bytes.fromhex(id.decode()), int(number), value) for id, number, value in lines]
