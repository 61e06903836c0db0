"""How a context is shared out between programs in attention."""

from dataclasses import dataclass

UNLIMITED = 1 << 20
"""More pages than a context has, more rows than a request."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """A context is split every ``pages`` pages, into no more than ``most`` parts, or not at all where the request has
    more than ``wide`` query rows for a KV head, which fill a device by themselves. It follows from what belongs to the
    request alone: its neighbours cannot change the bits of a result.
    """

    pages: int
    wide: int = UNLIMITED
    most: int = UNLIMITED

    def most_splits(self, pages: int) -> int:
        """Splits of a context of at most so many pages."""
        return min(-(-pages // self.pages), self.most)


MEASURED = SplitRule(pages=20, wide=1024)
"""benchmarks/results/kernels-h200.json"""

PROMPTS = SplitRule(pages=5, wide=256, most=8)
"""For a few new tokens on a long resident prefix; not measured yet."""
