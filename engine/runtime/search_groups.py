"""Which requests of a batch are searched together. Pure.

A search decodes its widest beam for every request of it, so a narrow beam beside a wide one is mostly padding. What
was prefilled together is therefore searched in groups of like widths, one after the other.
"""

from collections.abc import Sequence

from engine.runtime.buckets import round_up

SEARCH_ROWS = 192
"""What a search costs beside its rows, in rows of each decoded level: Qwen3-1.7B on an H200 takes 2 to 2.5 ms to read
its weights and launch its small kernels, and 0.01 ms a row."""


def width_order(widths: Sequence[Sequence[int]]) -> list[int]:
    """Places of the requests, narrow beams first, else as they are. ``widths``: of each request, by level."""
    return sorted(range(len(widths)), key=lambda place: (sum(widths[place][:-1]), *widths[place]))


def search_groups(
    widths: Sequence[Sequence[int]], request_sizes: Sequence[int], width_sizes: Sequence[int]
) -> list[slice]:
    """Neighbours that are searched together, such that all searches of a batch together compute least.

    ``widths``: of each request, by level, in ``width_order``. Searches are rounded up to ``request_sizes`` and
    ``width_sizes``, as graphs are. The last level's beams are not decoded.
    """
    decoded = [tuple(round_up(width_sizes, width) for width in levels[:-1]) for levels in widths]
    count = len(decoded)
    if not decoded[0] or (count in request_sizes and decoded.count(decoded[0]) == count):
        return [slice(0, count)]
    sizes = [round_up(request_sizes, size) for size in range(count + 1)]
    own = SEARCH_ROWS * len(decoded[0])
    least, begins = [0], [0]  # of the first so many requests: rows, and where their last group begins
    for end in range(1, count + 1):
        widest, best, first = decoded[end - 1], -1, 0
        for begin in range(end - 1, -1, -1):
            widest = tuple(map(max, widest, decoded[begin]))
            rows = least[begin] + own + sizes[end - begin] * sum(widest)
            if best < 0 or rows <= best:
                best, first = rows, begin
        least.append(best)
        begins.append(first)
    groups: list[slice] = []
    end = count
    while end:
        groups.append(slice(begins[end], end))
        end = begins[end]
    return groups[::-1]
