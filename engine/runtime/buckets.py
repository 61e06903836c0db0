"""The sizes that graphs are captured for, and how a batch is rounded up to them."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

REQUESTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WIDTHS = (64, 128, 192, 256, 384, 512, 768, 1024)
PAGES = (20, 40, 160)
EXCLUDED = 8192
"""Exclusions of a request, its history's included, that a graph has room for."""

_FEW_TOKENS, _TOKENS, _FINE_TOKENS = 64, 128, 4096


def request_buckets(most: int) -> tuple[int, ...]:
    """Steps of a third to a half, up to ``most``."""
    return _up_to(REQUESTS, most)


def width_buckets(most: int) -> tuple[int, ...]:
    """Beam widths in steps of a third to a half, up to ``most``."""
    return _up_to(WIDTHS, most)


def page_buckets(most: int) -> tuple[int, ...]:
    """Pages of the longest context: the attention kernel launches work for that many."""
    return _up_to(PAGES, most)


def token_buckets(most: int) -> Iterator[int]:
    """New tokens of a batch: products work in blocks of 128 rows anyway, so such steps cost next to nothing.

    The first is for users who come back. From 4,096 on steps are an eighth to a sixteenth, or there would be too many
    graphs.
    """
    if most > _FEW_TOKENS:
        yield _FEW_TOKENS
    tokens = 0
    while tokens < most:
        tokens += _TOKENS if tokens < _FINE_TOKENS else (1 << tokens.bit_length()) // 16
        yield min(tokens, most)


def round_up(buckets: Sequence[int], size: int) -> int:
    """The smallest bucket that holds ``size``; ``size`` itself where none does."""
    place = bisect_left(buckets, size)
    return buckets[place] if place < len(buckets) else size


def _up_to(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    return (*(size for size in sizes if size < most), most)
