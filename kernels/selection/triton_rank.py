"""Second half of a search step on the device: drop what cannot be kept, put the rest in order."""

import triton
import triton.language as tl

from kernels.selection.triton_expand import BINS, distance_bin

LOWEST = tl.constexpr(-(1 << 63))
LISTED = tl.constexpr(0)
"""Columns of the counters of a request: keys in the short list, keys kept by ``refine``, its barrier, NaN scores."""
REFINED = tl.constexpr(1)
ARRIVED = tl.constexpr(2)
INVALID = tl.constexpr(3)


@triton.jit
def _key(score, node):
    """Unique int64: a larger one is a better score or, at the same score, an earlier node."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - node).to(tl.int64)


@triton.jit
def _score_of(key):
    ordered = (key >> 32).to(tl.int32)
    return tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)


@triton.jit
def _append(keys, parents, counter, key, parent, chosen, L):
    """Append the chosen of a block to the short list in any order; counts also what finds no room."""
    number = tl.sum(chosen.to(tl.int32), 0)
    if number > 0:
        place = tl.atomic_add(counter, number, sem="relaxed") + tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(keys + place, key, mask=chosen & (place < L))
        tl.store(parents + place, parent, mask=chosen & (place < L))


@triton.jit(do_not_specialize=["W", "C", "L"])
def sift(
    candidates, first, count, best, histogram, scores, width, next_width, counters, keys, parents,
    W, C, L,
    BEAMS: tl.constexpr, HEAD: tl.constexpr, SPLIT: tl.constexpr, EARLY_END: tl.constexpr,
):  # fmt: skip
    """Program ``(BEAMS beams * SPLIT + part, request)``; ``SPLIT > 1`` needs ``BEAMS = 1``.

    What is not under an exact lower bound on the last kept goes to the list. ``EARLY_END`` skips the children after
    ``HEAD`` of beams whose best child is under the bound.
    """
    r = tl.program_id(1)
    beams = tl.load(width + r)
    begin = tl.program_id(0) // SPLIT * BEAMS
    part = tl.program_id(0) % SPLIT
    if begin >= beams:
        return
    lane = tl.arange(0, BEAMS * HEAD)  # the first HEAD children of every beam in one block
    b = begin + lane // HEAD
    j = part * HEAD + lane % HEAD
    exists = j < tl.load(count + r * W + b, mask=b < beams, other=0)
    score = tl.load(candidates + (r * W + b).to(tl.int64) * C + j, mask=exists, other=float("nan"))
    node = tl.load(first + r * W + b, mask=b < beams, other=0) + j
    best_of = tl.load(best + (r * W + b) * SPLIT + part, mask=b < beams, other=0.0)
    counted = tl.load(histogram + r * BINS + tl.arange(0, BINS))
    best_beam = tl.load(scores + r * W)
    counter = counters + r * 4 + LISTED
    keys += r.to(tl.int64) * L
    parents += r.to(tl.int64) * L

    bound = tl.sum((tl.cumsum(counted, 0) < tl.load(next_width + r)).to(tl.int32), 0)
    if tl.sum((best_of != best_of).to(tl.int32), 0) > 0:
        tl.store(counters + r * 4 + INVALID, 1)
    chosen = (score == score) & (distance_bin(score, best_beam) <= bound)
    _append(keys, parents, counter, _key(score, node), b, chosen, L)

    last = tl.minimum(begin + BEAMS, beams)
    beam = begin
    while beam < last:  # the rest, beam by beam
        children = tl.load(count + r * W + beam)
        start = (SPLIT + part) * HEAD
        if EARLY_END:
            if distance_bin(tl.load(best + (r * W + beam) * SPLIT + part), best_beam) > bound:
                start = children
        row = candidates + (r * W + beam).to(tl.int64) * C
        beam_first = tl.load(first + r * W + beam)
        while start < children:
            place = start + lane
            score = tl.load(row + place, mask=place < children, other=float("nan"))
            chosen = (score == score) & (distance_bin(score, best_beam) <= bound)
            _append(keys, parents, counter, _key(score, beam_first + place), tl.zeros_like(lane) + beam, chosen, L)
            start += SPLIT * BEAMS * HEAD
        beam += 1


@triton.jit(do_not_specialize=["W", "C", "L"])
def refine(
    candidates, first, count, width, next_width, counters, radix, keys, parents,
    W, C, L,
    PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, RADIX: tl.constexpr,
):  # fmt: skip
    """Does nothing unless ties overflowed the short list: then an exact radix selection over all candidates.

    The ``PROGRAMS`` programs of a request wait for each other after every digit, so all of the launch's programs must
    fit on the device at once.
    """
    r = tl.program_id(1)
    if tl.load(counters + r * 4 + LISTED) <= L:
        return
    beams = tl.load(width + r)
    missing = tl.load(next_width + r)
    digits = tl.arange(0, 256)
    prefix = tl.full([], 0, tl.int64)
    known = tl.full([], 0, tl.int64)
    shift = tl.full([], 56, tl.int64)
    arrivals = PROGRAMS
    while shift >= 0:
        mine = tl.zeros([256], tl.int32)
        b = tl.program_id(0)
        while b < beams:
            begin = tl.load(first + r * W + b)
            children = tl.load(count + r * W + b)
            start = 0
            while start < children:
                j = start + tl.arange(0, BLOCK)
                row = candidates + (r * W + b).to(tl.int64) * C
                score = tl.load(row + j, mask=j < children, other=float("nan"))
                key = _key(score, begin + j) ^ LOWEST  # ordered as unsigned from here on
                same = (score == score) & (((key ^ prefix) & known) == 0)
                number = tl.sum(same.to(tl.int32), 0)
                if number > 0:
                    digit = ((key >> shift) & 255).to(tl.int32)
                    smallest = tl.min(tl.where(same, digit, 255), 0)
                    if smallest == tl.max(tl.where(same, digit, 0), 0):  # ties: much faster than a histogram
                        mine += tl.where(digits == smallest, number, 0)
                    else:
                        mine += tl.histogram(digit, 256, mask=same)
                start += BLOCK
            b += PROGRAMS
        table = radix + r * RADIX + shift * 32 + digits
        tl.atomic_add(table, mine, mask=mine > 0, sem="relaxed")
        _wait_for_all(counters + r * 4 + ARRIVED, arrivals)
        counted = tl.load(table, volatile=True)
        above = tl.sum(counted, 0) - tl.cumsum(counted, 0)
        hit = (above < missing) & (above + counted >= missing)
        prefix |= tl.sum(tl.where(hit, digits, 0), 0).to(tl.int64) << shift
        known |= tl.full([], 255, tl.int64) << shift
        inside = tl.sum(tl.where(hit, counted, 0), 0)
        missing -= tl.sum(tl.where(hit, above, 0), 0)
        arrivals += PROGRAMS
        shift = tl.where(inside == missing, -1, shift - 8)  # all that begins like this is kept: no need to look closer

    lowest_kept = prefix ^ LOWEST
    b = tl.program_id(0)
    while b < beams:
        begin = tl.load(first + r * W + b)
        children = tl.load(count + r * W + b)
        start = 0
        while start < children:
            j = start + tl.arange(0, BLOCK)
            row = candidates + (r * W + b).to(tl.int64) * C
            score = tl.load(row + j, mask=j < children, other=float("nan"))
            key = _key(score, begin + j)
            chosen = (score == score) & (key >= lowest_kept)
            at = r.to(tl.int64) * L
            _append(keys + at, parents + at, counters + r * 4 + REFINED, key, tl.zeros_like(j) + b, chosen, L)
            start += BLOCK
        b += PROGRAMS


@triton.jit
def _wait_for_all(counter, arrivals):
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel")
    while tl.atomic_add(counter, 0, sem="acq_rel") < arrivals:
        pass
    tl.debug_barrier()


@triton.jit(do_not_specialize=["R", "L", "out_width"])
def rank(
    keys, parents, counters, histogram, width, next_width, margin, min_width, address,
    nodes_out, scores_out, parents_out, codes_out, width_out,
    R, L, out_width,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program ``(ROWS keys, request)``: the number of keys above a key is its place in the order."""
    r = tl.program_id(1)
    if tl.program_id(0) == 0:  # clean for the next step
        tl.store(histogram + r * BINS + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))
    listed = tl.load(counters + r * 4 + LISTED)
    listed = tl.where(listed > L, tl.load(counters + r * 4 + REFINED), listed)
    keep = tl.minimum(listed, tl.load(next_width + r))
    invalid = (tl.load(width + r) < 0) | (tl.load(counters + r * 4 + INVALID) > 0)
    keys += r.to(tl.int64) * L
    parents += r.to(tl.int64) * L
    columns = tl.arange(0, BLOCK)

    allowed = tl.load(margin + r)
    if allowed < float("inf"):
        highest = tl.full([BLOCK], LOWEST, tl.int64)
        start = 0
        while start < listed:
            highest = tl.maximum(highest, tl.load(keys + start + columns, mask=start + columns < listed, other=LOWEST))
            start += BLOCK
        bound = _score_of(tl.max(highest, 0)) - allowed
        within = tl.zeros([BLOCK], tl.int32)
        start = 0
        while start < listed:
            inside = start + columns < listed
            score = _score_of(tl.load(keys + start + columns, mask=inside, other=LOWEST))
            within += (inside & (score >= bound)).to(tl.int32)
            start += BLOCK
        keep = tl.minimum(keep, tl.maximum(tl.sum(within, 0), tl.load(min_width + r)))
    keep = tl.where(invalid, 0, keep)
    if tl.program_id(0) == 0:
        tl.store(width_out + r, tl.where(invalid, -1, keep))

    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = r * out_width
    padding = (rows >= keep) & (rows < out_width)
    zero = tl.zeros([ROWS], tl.int32)
    tl.store(nodes_out + out + rows, zero, mask=padding)
    tl.store(scores_out + out + rows, zero.to(tl.float32) - float("inf"), mask=padding)
    tl.store(parents_out + out + rows, zero, mask=padding)
    tl.store(codes_out + out + rows, zero, mask=padding)
    if (keep == 0) | (tl.program_id(0) * ROWS >= listed):
        return

    mine = tl.load(keys + rows, mask=rows < listed, other=LOWEST)
    above = tl.zeros([ROWS, BLOCK], tl.int32)
    start = 0
    while start < listed:
        other = tl.load(keys + start + columns, mask=start + columns < listed, other=LOWEST)
        above += (other[None, :] > mine[:, None]).to(tl.int32)
        start += BLOCK
    place = tl.sum(above, 1)
    chosen = (rows < listed) & (place < keep)
    node = 0x7FFFFFFF - (mine & 0x7FFFFFFF).to(tl.int32)
    code = tl.load(address + R + r).to(tl.pointer_type(tl.int32))
    tl.store(nodes_out + out + place, node, mask=chosen)
    tl.store(scores_out + out + place, _score_of(mine), mask=chosen)
    tl.store(parents_out + out + place, tl.load(parents + rows, mask=chosen, other=0), mask=chosen)
    tl.store(codes_out + out + place, tl.load(code + node, mask=chosen, other=0), mask=chosen)
