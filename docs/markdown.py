"""Small pieces of the generated pages."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def where(report: Mapping[str, Any]) -> str:
    known = [f"{name} {report[name]}" for name in ("torch", "triton", "driver", "commit") if report.get(name)]
    return ", ".join([report["device"], *known])


def plain(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def met(holds: bool) -> str:
    """What became of a target."""
    return "met" if holds else "**missed**"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    yield from ("| " + " | ".join(map(str, row)) + " |" for row in rows)
    yield ""
