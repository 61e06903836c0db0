"""How a context is shared out between programs in attention."""

from dataclasses import dataclass

TILE_ROWS = 128
"""Rows of the tiles by which a prompt's programs are counted, whatever those of the kernel are."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """A context is split every ``pages`` pages, or not at all where the request has more than ``wide`` query rows for a
    KV head, which fill a device by themselves. It follows from what belongs to the request alone: its neighbours cannot
    change the bits of a result.
    """

    pages: int
    wide: int = 1 << 20

    def most_splits(self, pages: int) -> int:
        """Splits of a context of at most so many pages."""
        return -(-pages // self.pages)


@dataclass(frozen=True, slots=True)
class PromptRule:
    """The context of a few new tokens is split evenly into parts of at least ``pages`` pages, into fewer where it would
    get more than ``tiles`` tiles for a KV head, and not at all where the request has more than ``wide`` query rows for
    one. As above, it follows from the request alone.
    """

    pages: int
    tiles: int
    wide: int = 1 << 20

    def most_splits(self, pages: int) -> int:
        """Splits of a context of at most so many pages."""
        return min(max(pages // self.pages, 1), self.tiles)

    def most_tokens(self, tokens: int, group: int) -> int:
        """New tokens of a request that is split, in a batch of ``tokens``; ``group``: query heads of a KV head."""
        return min(tokens, self.tiles // 2 * TILE_ROWS // group, self.wide // group)

    def room(self, tokens: int, group: int, pages: int) -> int:
        """Splits times tokens of such a request, at most."""
        splits = self.most_splits(pages)
        return min(self.tiles * TILE_ROWS // group, splits * self.most_tokens(tokens, group)) if splits > 1 else 0


MEASURED = SplitRule(pages=20, wide=1024)
"""benchmarks/results/kernels-h200.json"""

PROMPTS = PromptRule(pages=5, tiles=8, wide=TILE_ROWS)
"""benchmarks/results/prompt_splits-h200.json"""
