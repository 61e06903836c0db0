"""How a context is shared out between programs in decode attention."""

from dataclasses import dataclass
from typing import Self

UNLIMITED = 1 << 20
"""More pages than a context has, more rows than a request."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """Pages of a split, from what belongs to the request alone: its neighbours cannot change the bits of a result.

    Contexts of at most ``short`` pages are split every ``short_split`` pages, longer ones every ``long_split``; not at
    all where the request's beams have more than ``wide`` query rows for a KV head, which fill a device by themselves.
    """

    wide: int
    short: int
    short_split: int
    long_split: int

    @classmethod
    def every(cls, pages: int) -> Self:
        """A split every ``pages`` pages."""
        return cls(wide=UNLIMITED, short=0, short_split=pages, long_split=pages)

    def most_splits(self, pages: int) -> int:
        """Splits of a context of at most so many pages."""
        return max(-(-min(pages, self.short) // self.short_split), -(-pages // self.long_split))

    @property
    def arguments(self) -> tuple[int, int, int, int]:
        """As ``triton_splits.split_size`` takes them."""
        return self.wide, self.short, self.short_split, self.long_split


MEASURED = SplitRule(wide=1024, short=12, short_split=4, long_split=20)
"""benchmarks/results/kernels-h200.json"""
