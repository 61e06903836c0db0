"""What docs/operations.md says of faults: metrics and log lines are the code's, and no tested failure is left out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from consumer.fleet.status import RESTARTS
from consumer.service.metrics import Metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
FAILURES = (ROOT / "docs" / "failures.md").read_text()
GAP = "…"
_CONVERSION = re.compile(r"%[-.\d]*[sdrf]")


def rows() -> list[list[str]]:
    table = PAGE.partition("## What happens when")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return cells[2:]


def templates(tree: ast.AST) -> Iterator[str]:
    """Every text of a module, with a gap for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _CONVERSION.sub(GAP, node.value)


def test_every_metric_on_the_page_exists() -> None:
    known = {metric.name for metric in Metrics().definitions} | {f"{RESTARTS}_total"}
    named = set(re.findall(r"recallstream_\w+", PAGE))
    assert len(named) > 20
    assert named <= known, named - known


def test_every_log_line_of_the_table_is_one_of_the_code() -> None:
    sources = (path for package in ("consumer", "catalog_sync") for path in (ROOT / package).rglob("*.py"))
    known = {text for path in sources for text in templates(ast.parse(path.read_text()))}
    lines = {line for row in rows() for line in re.findall(r"`([^`]+)`", row[4])}
    assert len(lines) > 10
    assert lines <= known, lines - known
    assert "the … thread failed" in known


def test_every_failure_that_has_a_test_is_a_row() -> None:
    tested = {int(number) for number, rest in re.findall(r"^\| (\d+) \|(.*)$", FAILURES, re.MULTILINE) if "::" in rest}
    told = {int(number) for row in rows() for number in re.findall(r"\d+", row[0])}
    assert told == tested


def test_every_row_says_all() -> None:
    assert len(rows()) > 30
    assert all(len(row) == 5 and all(row[1:]) for row in rows())
