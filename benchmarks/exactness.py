"""Is the engine exact on this device? Its answers beside the definition of the search, and beside themselves.

    python -m benchmarks.exactness [--device cpu] [--sids Beauty.index.json] [--out FILE] [--wall-s 60]

- float32 against a float64 search that computes every prefix whole: a trie of a million items at width 256; a small
  shape, also against the oracle of ``engine/reference``; with ``--sids`` a published table of SIDs (item id to codes
  ``<a_183>``). An answer is right if it is that of a search whose scores are read to within 1e-4.
- bfloat16 and FP8 against bfloat16 inputs accumulated in float32: how many of the same items, how far apart the scores.
- every request alone, in a batch, and at other places of it: how many answers are the same bit for bit.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.card import describe
from benchmarks.engine_run import load_engine, random_catalog, results
from benchmarks.measure import WallLimit
from benchmarks.reference import Beams, ReferenceDecoder, search
from benchmarks.results import ReportFile, Row, default_path
from benchmarks.shapes import SHAPES, Shape, write_model
from engine.catalog.build import build_catalog
from engine.catalog.catalog import Catalog
from engine.errors import RecallstreamError
from engine.recall_engine import RecallEngine
from engine.reference import oracle_recall
from engine.request import BeamPolicy, RecallRequest, RecallResult
from engine.settings import EngineSettings

EPSILON = 1e-4
CHUNK = 128
SMALL = Shape("small", 128, 3, 4, 2, 32, 256, vocab=1024, codes=64)
SIDS = Shape("four levels", 256, 4, 8, 4, 64, 512, vocab=1280, codes=256, levels=4)


class Exactness:
    """One model with one catalog: rows that say how right its answers are."""

    def __init__(
        self, shape: Shape, catalog: Catalog, width: int, contexts: Sequence[int], scratch: Path, device: torch.device
    ) -> None:
        self.catalog, self._device = catalog, device
        self.model = write_model(shape, scratch / shape.name.replace(" ", "-"), device)
        self._case = (
            f"{shape.name}, {catalog.trie.items:,} items, beam {width}, contexts {contexts[0]} to {contexts[-1]}"
        )
        self._width = width
        random = np.random.default_rng(3)
        self.requests = [
            RecallRequest(
                beam=BeamPolicy((width,) * shape.levels),
                top_k=width,
                tokens=random.integers(0, shape.vocab, context, dtype=np.int32),
                max_items_per_sid=1,
                return_sids=True,
            )
            for context in contexts
        ]

    def against_oracle(self) -> Row:
        """Float32 against ``engine/reference``."""
        largest, same = 0.0, 0
        for request, answer in zip(self.requests, self._answers(self.engine("fp32")), strict=True):
            oracle = oracle_recall(self.model, self.catalog, request)
            largest = max(largest, float(np.abs(answer.scores - np.array(oracle.scores)).max()))
            same += answer.items.tolist() == list(oracle.items)  # type: ignore[union-attr]  # ids are numbers here
        right = largest <= EPSILON
        return self._row("float32 against the oracle", right=right, largest_difference=largest, same=same)

    def against_float64(self) -> Row:
        """Float32 against the float64 search on the device."""
        answers = self._answers(self.engine("fp32"))
        references = self.references(rounded=False)
        judged = [judge(answer, beams) for answer, beams in zip(answers, references, strict=True)]
        return self._row(
            "float32 against float64",
            right=all(each["right"] for each in judged),
            largest_difference=max(each["largest_difference"] for each in judged),
            same=sum(each["same"] for each in judged),
        )

    def against_rounded(self, kinds: Sequence[str]) -> Iterator[Row]:
        """Each kind of products against bfloat16 inputs accumulated in float32."""
        references = self.references(rounded=True)
        for kind in kinds:
            pairs = list(zip(self._answers(self.engine(kind)), references, strict=True))
            shares = [overlap(answer, beams) for answer, beams in pairs]
            yield self._row(
                f"{kind} against bfloat16 inputs, float32 sums",
                **{name: round(float(np.mean([share[name] for share in shares])), 4) for name in shares[0]},
            )

    def alone_and_together(self, kind: str) -> Row:
        """Answers alone, in the batch, and in the batch turned around."""
        engine = self.engine(kind)
        alone = [results(engine.recall([request]))[0] for request in self.requests]
        together = self._answers(engine)
        turned = results(engine.recall(self.requests[::-1]))[::-1]
        return self._row(
            f"{kind}, alone, in a batch, at another place",
            batch_same_as_alone=share_of(alone, together, same_bits),
            turned_same_as_batch=share_of(together, turned, same_bits),
            batch_items_as_alone=share_of(alone, together, shared_items),
            turned_items_as_batch=share_of(together, turned, shared_items),
            largest_difference=max(
                score_difference(a, b)
                for pairs in (zip(alone, together, strict=True), zip(together, turned, strict=True))
                for a, b in pairs
            ),
        )

    def engine(self, kind: str) -> RecallEngine:
        longest = max(len(request.tokens) for request in self.requests)  # type: ignore[arg-type]  # all have tokens
        settings: dict[str, Any] = {
            "model": self.model,
            "device": self._device.type,
            "precision": kind,
            "max_batch": len(self.requests),
            "max_batch_tokens": len(self.requests) * (longest + CHUNK),
            "max_batch_rows": len(self.requests) * self._width,
            "max_width": self._width,
            "max_top_k": self._width,
            "context_pages": 2 * len(self.requests) * -(-longest // CHUNK),
            "max_graphs": 48,
        }
        return load_engine(EngineSettings(**settings), self.catalog)

    def _answers(self, engine: RecallEngine) -> list[RecallResult]:
        return results(engine.recall(self.requests))

    def references(self, *, rounded: bool) -> list[Beams]:
        decoder = ReferenceDecoder(self.model, self._device, rounded=rounded)
        with torch.inference_mode():
            return [
                search(decoder, self.catalog.trie, request.tokens, request.beam.widths, EPSILON)  # type: ignore[arg-type]
                for request in self.requests
            ]

    def _row(self, what: str, **found: object) -> Row:
        return {"what": what, "case": self._case, "requests": len(self.requests), **found}


def judge(answer: RecallResult, beams: Beams) -> dict[str, Any]:
    """Whether the answer is that of a right run, and whether it is that of the exact one, item by item."""
    codes, scores = beams.codes.tolist(), beams.scores.tolist()
    places = {tuple(sid): place for place, sid in enumerate(codes)}
    found = [places.get(tuple(sid)) for sid in _sids(answer)]
    exact = [tuple(codes[place]) for place in beams.exact.nonzero()[:, 0].tolist()]
    same = [tuple(sid) for sid in _sids(answer)] == exact
    known = [place for place in found if place is not None]
    differences = [
        abs(scores[place] - float(score))
        for place, score in zip(found, answer.scores, strict=True)
        if place is not None
    ]
    ordered = all(scores[b] <= scores[a] + EPSILON for a, b in pairwise(known))
    complete = set(beams.certain.nonzero()[:, 0].tolist()) <= set(known)
    largest = max(differences, default=0.0)
    right = len(known) == len(found) == len(exact) and ordered and complete and largest <= EPSILON
    return {"right": right, "same": same, "largest_difference": largest}


def overlap(answer: RecallResult, beams: Beams) -> dict[str, float]:
    """Shares of the reference's best that are found among as many, and differences of scores."""
    places = beams.exact.nonzero()[:, 0]
    exact = {
        tuple(sid): score
        for sid, score in zip(beams.codes[places].tolist(), beams.scores[places].tolist(), strict=True)
    }
    best, found = list(exact), [tuple(sid) for sid in _sids(answer)]
    differences = [
        abs(exact[sid] - float(score)) for sid, score in zip(found, answer.scores, strict=True) if sid in exact
    ]
    return {
        "top_1": float(found[0] == best[0]),
        "top_10": len(set(found[:10]) & set(best[:10])) / min(10, len(best)),
        "all": len(set(found) & set(best)) / len(best),
        "median_difference": float(np.median(differences)),
        "largest_difference": max(differences),
    }


def same_bits(a: RecallResult, b: RecallResult) -> float:
    return float(np.array_equal(a.items, b.items) and np.array_equal(a.scores, b.scores))


def shared_items(a: RecallResult, b: RecallResult) -> float:
    return len(set(a.items) & set(b.items)) / max(1, len(a.items))


def score_difference(a: RecallResult, b: RecallResult) -> float:
    """Of the items that both have."""
    ours, theirs = (dict(zip(each.items, each.scores.tolist(), strict=True)) for each in (a, b))
    return max((abs(ours[item] - theirs[item]) for item in ours.keys() & theirs.keys()), default=0.0)


def share_of(
    some: Sequence[RecallResult], others: Sequence[RecallResult], of: Callable[[RecallResult, RecallResult], float]
) -> float:
    return round(float(np.mean([of(a, b) for a, b in zip(some, others, strict=True)])), 4)


def table_catalog(path: Path, shape: Shape) -> Catalog:
    """The catalog of a JSON table from item id to codes ``<a_183>``."""
    table = json.loads(path.read_text())
    sids: NDArray[np.int32] = np.array(
        [[int(re.sub(r"\D", "", code)) for code in codes] for codes in table.values()], dtype=np.int32
    )
    ids = np.array([int(item) for item in table], dtype=np.int64)
    return build_catalog(version=path.stem, model=shape.name, sizes=(shape.codes,) * shape.levels, ids=ids, sids=sids)


def _sids(answer: RecallResult) -> list[list[int]]:
    if answer.sids is None:
        raise RecallstreamError("the answer has no SIDs")
    sids: list[list[int]] = answer.sids.tolist()
    return sids


def run(options: argparse.Namespace, device: torch.device, scratch: Path) -> Iterator[Callable[[], Iterator[Row]]]:
    """Pieces of work, the most telling first."""
    shape = SHAPES[options.model]
    full = Exactness(
        shape, random_catalog(shape.name, (shape.codes,) * shape.levels, options.items), options.width,
        options.contexts, scratch, device,
    )  # fmt: skip
    yield lambda: iter([full.against_float64()])
    yield lambda: full.against_rounded(options.kinds)
    for kind in ("fp32", *options.kinds):
        yield lambda kind=kind: iter([full.alone_and_together(kind)])  # type: ignore[misc]  # bound now
    small = Exactness(SMALL, random_catalog("small", (64,) * 3, 2_000), 16, (30, 50, 61), scratch, device)
    yield lambda: iter([small.against_oracle(), small.against_float64()])
    if options.sids is not None:
        table = Exactness(SIDS, table_catalog(options.sids, SIDS), options.width, options.contexts, scratch, device)
        yield lambda: iter([table.against_float64()])
        yield lambda: table.against_rounded(options.kinds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="qwen3-0.6b", choices=list(SHAPES))
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 130, 257, 300])
    parser.add_argument("--kinds", nargs="*", choices=("bf16", "fp8"), default=["bf16", "fp8"])
    parser.add_argument("--sids", type=Path, help="JSON from item id to a list of codes like <a_183>")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--wall-s", type=float, help="start nothing more after so many seconds")
    options = parser.parse_args()
    device, limit = torch.device(options.device), WallLimit(options.wall_s)
    torch.manual_seed(0)
    head = {"kind": "exactness", **describe(device), "epsilon": EPSILON}
    report = ReportFile(options.out or default_path("exactness", str(head["device"])), head)
    with tempfile.TemporaryDirectory(prefix="recallstream-bench-") as scratch:
        for work in run(options, device, Path(scratch)):
            if limit.passed:
                break
            for row in work():
                report.add(row)
                print(json.dumps(row), flush=True)
    return int(not all(row.get("right", True) for row in report.rows))


if __name__ == "__main__":
    sys.exit(main())
