"""What a narrower precision does to the answers: ``python -m benchmarks.quality``.

*Agreement*: how much of the answer of one precision is in that of another, over the same requests. Random weights of a
model's exact shape are a hard case: their logits are nearly flat, so that thousands of candidates lie closer together
than rounding moves them. *Recall*: HR@10 and NDCG@10 of the demo's trained model over the users of MovieLens-1M, as
``benchmarks.recall.evaluate`` measures them, histories excluded.
"""

import argparse
import gc
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.card import describe, device_name
from benchmarks.cases import Case
from benchmarks.engine_run import engine_settings, load_engine, random_catalog, random_requests, results
from benchmarks.recall.evaluate import MODEL, K, recall_all
from benchmarks.results import ReportFile, Row, default_path
from benchmarks.shapes import SHAPES, Shape, write_model
from catalog_sync.source import load_source
from consumer.demo.movielens import MovieLens, find_movielens, load_movielens
from consumer.demo.ranking import hit_rate_and_ndcg
from engine.recall_engine import RecallEngine
from engine.request import RecallResult
from engine.settings import EngineSettings

PRECISIONS = ("fp32", "bf16", "fp8")
TOP = (10, 50)
BEAM = {"demo": 50, "random": 256}
PAGES = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(SHAPES), default=["qwen3-1.7b"], help="of random weights")
    parser.add_argument("--requests", type=int, default=64, help="of each model with random weights")
    parser.add_argument("--context", type=int, default=1000, help="tokens of a request of such a model")
    parser.add_argument("--items", type=int, default=1_000_000, help="of such a model's catalog")
    parser.add_argument("--users", type=int, help="of MovieLens-1M, only the first so many")
    parser.add_argument("--movielens", type=Path, help="directory of its files; default: the installed package")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    report = ReportFile(
        options.out or default_path("quality", device_name(device)), {"kind": "quality", **describe(device)}
    )
    data = load_movielens(options.movielens or find_movielens())
    users = range(min(options.users or data.users, data.users))
    for row in demo_rows(data, users, device):
        print(json.dumps(report.add(row)), flush=True)
    for name in options.models:
        for row in random_rows(SHAPES[name], options.requests, options.context, options.items, device):
            print(json.dumps(report.add(row)), flush=True)


def demo_rows(data: MovieLens, users: Sequence[int], device: torch.device) -> Iterator[Row]:
    """Recall of the demo's model at each precision, then agreement."""
    targets = [int(data.history(user)[-1]) for user in users]
    found: dict[str, list[NDArray[np.int64]]] = {}
    for precision in PRECISIONS:
        engine = demo_engine(device, precision)
        found[precision] = recall_all(data, engine, users, BEAM["demo"], exclude_history=True)
        hit, ndcg = hit_rate_and_ndcg(found[precision], targets, K)
        yield {
            "what": "recall",
            "model": engine.spec.id,
            "precision": precision,
            "users": len(users),
            "beam": BEAM["demo"],
            "hr@10": round(hit, 4),
            "ndcg@10": round(ndcg, 4),
        }
        del engine
        release()
    yield from agreement_rows("the demo's model", found, (K,), {"requests": len(users), "beam": BEAM["demo"]})


def demo_engine(device: torch.device, precision: str) -> RecallEngine:
    settings = EngineSettings(model=MODEL, device=device.type, precision=precision, context_pages=PAGES)
    engine = RecallEngine(settings)
    catalog = load_source(MODEL / "items.parquet", model=engine.spec.id, sizes=engine.spec.level_sizes, version="base")
    engine.catalogs.stage(catalog)
    engine.catalogs.activate("base")
    engine.warm_up()
    return engine


def random_rows(shape: Shape, requests: int, context: int, items: int, device: torch.device) -> Iterator[Row]:
    """Agreement of bf16 and fp8, and of bf16 with fp32, in answers of a whole beam."""
    case = Case(shape, BEAM["random"], context, batch=4)
    catalog = random_catalog(shape.name, (shape.codes,) * shape.levels, items)
    asked = list(random_requests(Case(shape, BEAM["random"], context, requests), np.random.default_rng(7)))
    found: dict[str, list[NDArray[np.int64]]] = {}
    spread = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        model = write_model(shape, Path(scratch), device)
        for precision in PRECISIONS:
            changes: dict[str, Any] = {"precision": precision, "graphs": False}
            engine = load_engine(engine_settings(model, [case], device, **changes), catalog)
            answers = results(engine.recall(asked))
            found[precision] = [np.asarray(answer.items, dtype=np.int64) for answer in answers]
            spread = score_spread(answers)
            del engine
            release()
    about = {"requests": requests, "beam": BEAM["random"], "context": context, "items": items}
    yield from agreement_rows(
        f"{shape.name}, random weights", found, (*TOP, BEAM["random"]), about | {"first_to_tenth": round(spread, 3)}
    )


def score_spread(answers: Sequence[RecallResult]) -> float:
    """Score of the best item less that of the tenth, the median."""
    return float(np.median([answer.scores[0] - answer.scores[9] for answer in answers]))


def agreement_rows(
    model: str, found: dict[str, list[NDArray[np.int64]]], tops: Sequence[int], about: dict[str, object]
) -> Iterator[Row]:
    for precision, against in (("bf16", "fp32"), ("fp8", "fp32"), ("fp8", "bf16")):
        pairs = list(zip(found[precision], found[against], strict=True))
        yield {
            "what": "agreement",
            "model": model,
            "precision": precision,
            "against": against,
            **about,
            "top-1": round(float(np.mean([ours[:1] == theirs[:1] for ours, theirs in pairs])), 4),
            **{f"top-{top}": round(shared(pairs, top), 4) for top in tops},
        }


def shared(pairs: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], top: int) -> float:
    """The share of the first ``top`` items that both have among theirs."""
    return float(
        np.mean([len(np.intersect1d(ours[:top], theirs[:top])) / min(top, len(theirs)) for ours, theirs in pairs])
    )


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
