"""What a broker needs beside its own state: jars from Maven, a class archive, a formatted directory to copy."""

import fcntl
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.kafka.layout import HOST, Node, new_id, server_properties

HERE = Path(__file__).parent
DEFAULT_HOME = HERE.parents[1] / ".data" / "kafka"
INSTALLED = "installed-pom.xml"
"""In a home that is complete: what it was made from."""
START_S = 60.0
_STOP_S = 60.0
_LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.stderr.ref=stderr
appender.stderr.type=Console
appender.stderr.name=stderr
appender.stderr.target=SYSTEM_ERR
appender.stderr.layout.type=PatternLayout
appender.stderr.layout.pattern=%d %p %c{1}: %m%n
"""


class BrokerError(Exception):
    """A broker cannot be installed, started or configured."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Shared by every cluster of this machine; read-only once it is made."""

    home: Path

    @property
    def template(self) -> Path:
        """A formatted data directory; the identity in it is to be replaced."""
        return self.home / "formatted"

    def java(self, *arguments: str, archive: bool = True) -> list[str]:
        """The command for one of Kafka's main classes."""
        jars = ":".join(str(jar) for jar in sorted((self.home / "lib").glob("*.jar")))
        shared = [f"-XX:SharedArchiveFile={self.home / 'classes.jsa'}", "-Xshare:auto"] if archive else []
        quiet = f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}"
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return ["java", *small, *shared, quiet, "-cp", jars, *arguments]


def missing() -> str | None:
    """Why no broker can run here, or None."""
    lacking = [name for name in ("java", "mvn", "keytool") if shutil.which(name) is None]
    return f"{', '.join(lacking)} not on PATH: a broker needs a JDK 17 and Maven" if lacking else None


def install(home: Path = DEFAULT_HOME) -> Installation:
    """Make what is not there yet: minutes the first time, nothing later. Raises BrokerError."""
    if reason := missing():
        raise BrokerError(reason)
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    made, pom = Installation(home), (HERE / "pom.xml").read_text()
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = home / INSTALLED
        if not done.exists() or done.read_text() != pom:
            done.unlink(missing_ok=True)
            _make(made)
            done.write_text(pom)
    return made


def _make(made: Installation) -> None:
    for old in ("lib", "formatted", "first-run"):
        shutil.rmtree(made.home / old, ignore_errors=True)
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={made.home / 'lib'}"]
    run(["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), *copy])
    (made.home / "log4j2.properties").write_text(_LOGGING)
    first = made.home / "first-run"
    first.mkdir()
    node = Node(1, free_port(), free_port())
    properties = first / "server.properties"
    properties.write_text(server_properties(node, [node], first / "data"))
    format_it = ("kafka.tools.StorageTool", "format", "-t", new_id(), "-c", str(properties))
    run(made.java(*format_it, archive=False))
    shutil.copytree(first / "data", made.template)
    _archive_classes(made, properties, node)
    shutil.rmtree(first)


def _archive_classes(made: Installation, properties: Path, node: Node) -> None:
    """Class data sharing halves the start: a first run records what it loads."""
    command = made.java("kafka.Kafka", str(properties), archive=False)
    command.insert(1, f"-XX:ArchiveClassesAtExit={made.home / 'classes.jsa'}")
    log = properties.with_name("broker.log")
    with log.open("wb") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as process:
        try:
            await_it(lambda: answers(node.port) or process.poll() is not None, START_S, "first start", log)
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_S)
        finally:
            process.kill()


def run(command: list[str]) -> None:
    """Run to the end. Raises BrokerError with the last words of a command that fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BrokerError(f"{command[0]} failed: {(ended.stderr or ended.stdout)[-2000:]}")


def await_it(condition: Callable[[], bool], seconds: float, what: str, log: Path) -> None:
    """Poll until true. Raises BrokerError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise BrokerError(f"{what}: not within {seconds:.0f} s: {last_words(log)}")
        time.sleep(0.05)


def last_words(log: Path) -> str:
    """The end of a broker's log without its stack frames."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([line for line in lines if not line.startswith("\t")][-8:]) or "it logged nothing"


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Whether something listens."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


if __name__ == "__main__":  # before tests, whose time is limited; where no broker can run they skip themselves
    if missing() is None:
        install()
