"""First half of a search step on the device: score every live child, and learn how good a child must be to be kept."""

import triton
import triton.language as tl

BINS = tl.constexpr(1024)
"""Bins of the histogram of distances to the best beam: 16 octaves of 64, from 2^-8 to 2^8."""

GROUP = tl.constexpr(32)
"""Children of which only the best is counted where a request has many."""

TOP_BEAMS = tl.constexpr(8)
"""Beams whose children are counted one by one in any case: most of what is kept may come from them."""


@triton.jit
def distance_bin(score, best):
    """Bin of the distance ``best - score``; never larger for a better score."""
    distance = best - score
    distance = tl.where(distance > 0, distance, 0.0)
    return tl.minimum(tl.maximum((distance.to(tl.int32, bitcast=True) >> 17) - (119 << 6), 0), BINS - 1)


@triton.jit
def count_below(ordered, low, high, x):
    """How many of the ascending ``ordered[0 .. high]`` are under ``x`` (a block), given that ``low`` of them are."""
    span = high - low
    lower = tl.zeros_like(x) + low
    upper = tl.zeros_like(x) + high
    while span > 0:
        middle = (lower + upper) // 2
        open_ = lower < upper
        under = open_ & (tl.load(ordered + middle, mask=open_, other=0) < x)
        upper = tl.where(under | (lower >= upper), upper, middle)
        lower = tl.where(under, middle + 1, lower)
        span = span // 2
    return lower


@triton.jit
def _children(start, first, count, row, code, item_begin, live, all_live, excluded, low, high, CHILDREN: tl.constexpr):
    """A block of a node's children: place, whether there is one, logit, whether it is live."""
    place = start + tl.arange(0, CHILDREN)
    exists = place < count
    child = first + place
    logit = tl.load(row + tl.load(code + child, mask=exists, other=0), mask=exists, other=float("-inf")).to(tl.float32)
    alive = exists
    if not all_live:
        begin = tl.load(item_begin + child, mask=exists, other=0)
        end = tl.load(item_begin + child + 1, mask=exists, other=0)
        passed = tl.load(live + end, mask=exists, other=0) - tl.load(live + begin, mask=exists, other=0)
        if high > low:
            passed -= count_below(excluded, low, high, end) - count_below(excluded, low, high, begin)
        alive = exists & (passed > 0)
    return place, exists, logit, alive


@triton.jit
def _keep_scores(place, exists, logit, alive, base, z, best_beam, count_each, row, histogram, CHILDREN: tl.constexpr):
    """Store the scores of a block and count them; returns the best, and how many live ones are NaN."""
    score = base + (logit - z)
    valid = alive & (score == score)
    tl.store(row + place, tl.where(valid, score, float("nan")), mask=exists)
    ranked = tl.where(valid, score, float("-inf"))
    if count_each:
        tl.atomic_add(histogram + distance_bin(ranked, best_beam), 1, mask=valid, sem="relaxed")
    else:
        group_best = tl.max(tl.reshape(ranked, [CHILDREN // GROUP, GROUP]), 1)
        some = tl.max(tl.reshape(valid.to(tl.int32), [CHILDREN // GROUP, GROUP]), 1) > 0
        tl.atomic_add(histogram + distance_bin(group_best, best_beam), 1, mask=some, sem="relaxed")
    return tl.max(ranked, 0), tl.sum((alive & (score != score)).to(tl.int32), 0)


@triton.jit
def _merge_log_sum(top, total, x):
    """Add a block to a running log-sum-exp."""
    new_top = tl.maximum(top, tl.max(x, 0))
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    return new_top, total * tl.exp(top - shift) + tl.sum(tl.exp(x - shift), 0)


@triton.jit(do_not_specialize=["W", "E", "R"])
def expand(
    logits, scores, nodes, width, next_width, address, excluded, log_z, legal,
    candidates, first_out, count_out, best_out, histogram, counters, radix,
    W, C, E, R,
    CODES: tl.constexpr, CHILDREN: tl.constexpr, SPLIT: tl.constexpr, GIVEN_Z: tl.constexpr, RADIX: tl.constexpr,
):  # fmt: skip
    """Program ``(beam * SPLIT + part, request)``.

    ``candidates[r, b, j]`` becomes the score of child ``j`` of beam ``b``, NaN if it is not live;
    ``best_out[r, b, part]`` the best of them, NaN if a live child's score is. A request's histogram counts children, or
    only the best of every GROUP where there are many: what is counted exists, which is all that a bound needs.
    """
    r = tl.program_id(1)
    b = tl.program_id(0) // SPLIT
    part = tl.program_id(0) % SPLIT
    if tl.program_id(0) == 0:  # what the launches after this one count in
        tl.store(counters + r * 4 + tl.arange(0, 4), tl.zeros([4], tl.int32))
        tl.store(radix + r * RADIX + tl.arange(0, RADIX), tl.zeros([RADIX], tl.int32))
    at = r * W + b
    beams = tl.load(width + r)
    node = tl.load(nodes + at)
    base = tl.load(scores + at)
    best_beam = tl.load(scores + r * W)
    wanted = tl.load(next_width + r)
    is_legal = tl.load(legal + r).to(tl.int32) != 0
    child_begin = tl.load(address + r).to(tl.pointer_type(tl.int32))
    code = tl.load(address + R + r).to(tl.pointer_type(tl.int32))
    item_begin = tl.load(address + 2 * R + r).to(tl.pointer_type(tl.int32))
    live = tl.load(address + 3 * R + r).to(tl.pointer_type(tl.int32))
    if b >= beams:
        return
    row = logits + at.to(tl.int64) * C
    lane = tl.arange(0, CODES)
    if not GIVEN_Z:  # on its way while the pointers below are followed
        x = tl.load(row + lane, mask=(lane < C) & (not is_legal), other=float("-inf")).to(tl.float32)
    first = tl.load(child_begin + node)
    count = tl.load(child_begin + node + 1) - first
    item_first = tl.load(item_begin + first)
    item_last = tl.load(item_begin + first + count)
    passing = tl.load(live + item_last) - tl.load(live + item_first)
    low = 0
    high = 0
    hidden = excluded + r.to(tl.int64) * E
    # sorted: where the first of them lies past the node, none of them matters
    start = tl.where(tl.load(hidden, mask=E > 0, other=2147483647) < item_last, 0, E)
    while start < E:
        item = tl.load(hidden + start + tl.arange(0, 1024), mask=start + tl.arange(0, 1024) < E, other=2147483647)
        low += tl.sum((item < item_first).to(tl.int32), 0)
        high += tl.sum((item < item_last).to(tl.int32), 0)
        start = tl.where(tl.max(item, 0) < item_last, start + 1024, E)  # sorted: what follows is no smaller
    all_live = (passing == item_last - item_first) & (high == low)
    start = part * CHILDREN
    place, exists, logit, alive = _children(
        start, first, count, row, code, item_begin, live, all_live, hidden, low, high, CHILDREN
    )

    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    if is_legal:
        begin = 0
        while begin < count:
            _, _, x_child, alive_child = _children(
                begin, first, count, row, code, item_begin, live, all_live, hidden, low, high, CHILDREN
            )
            top, total = _merge_log_sum(top, total, tl.where(alive_child, x_child, float("-inf")))
            begin += CHILDREN
        z = top + tl.where(total == 1.0, 0.0, tl.log(total))
    elif GIVEN_Z:
        z = tl.load(log_z + at)
    else:
        top, total = _merge_log_sum(top, total, x)
        begin = CODES
        while begin < C:
            more = tl.load(row + begin + lane, mask=begin + lane < C, other=float("-inf")).to(tl.float32)
            top, total = _merge_log_sum(top, total, more)
            begin += CODES
        z = top + tl.log(total)

    count_each = (b < TOP_BEAMS) | (count * beams <= 2 * GROUP * wanted)
    counts = histogram + r * BINS
    out = candidates + at.to(tl.int64) * C
    best, invalid = _keep_scores(place, exists, logit, alive, base, z, best_beam, count_each, out, counts, CHILDREN)
    start += SPLIT * CHILDREN
    while start < count:
        place, exists, logit, alive = _children(
            start, first, count, row, code, item_begin, live, all_live, hidden, low, high, CHILDREN
        )
        block_best, block_invalid = _keep_scores(
            place, exists, logit, alive, base, z, best_beam, count_each, out, counts, CHILDREN
        )
        best = tl.maximum(best, block_best)
        invalid += block_invalid
        start += SPLIT * CHILDREN
    tl.store(best_out + at * SPLIT + part, tl.where(invalid > 0, float("nan"), best))
    if part == 0:
        tl.store(first_out + at, first)
        tl.store(count_out + at, count)
