"""Every test that docs/failures.md names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failures.md").read_text()


def test_the_page_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/\w+/\w+\.py)::(\w+)`", PAGE)
    assert len(named) > 30
    missing = [f"{path}::{test}" for path, test in named if f"def {test}(" not in (ROOT / path).read_text()]
    assert missing == []


def test_the_page_has_every_row() -> None:
    rows = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert rows == list(range(1, 31))
