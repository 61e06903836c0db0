import pytest

from tests.engine.equality import TALLY
from tests.engine.pairing import Pairing


@pytest.fixture(scope="session")
def pairing(tmp_path_factory: pytest.TempPathFactory) -> Pairing:
    return Pairing(tmp_path_factory.mktemp("models"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY.cases:
        terminalreporter.write_line(str(TALLY))
