"""HR@10 and NDCG@10 of the demo model over all users of MovieLens-1M, through the recall engine.

    python -m benchmarks.recall.evaluate

Leave-last-out: a user's last event is the target, all before it is the history; the catalog is all 3,883 films. Beside
it stands the popularity baseline. Both are measured twice: with every item allowed, and with the history excluded.
"""

import argparse
import json
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track

from catalog_sync.source import load_source
from consumer.demo.movielens import MovieLens, find_movielens, load_movielens
from consumer.demo.ranking import hit_rate_and_ndcg, most_popular, popularity_order
from engine.recall_engine import RecallEngine
from engine.request import NO_ITEMS, BeamPolicy, RecallRequest, RecallResult
from engine.settings import EngineSettings

K = 10
PAGES = 256  # sixteen of the longest histories
MODEL = Path("consumer/demo/model")
RESULTS = Path("benchmarks/results/recall-ml1m.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--movielens", type=Path, help="directory of ml-1m.{item,inter}; default: the installed package"
    )
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--users", type=int, help="only the first so many")
    parser.add_argument("--width", type=int, default=50, help="beams at every level")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()

    data = load_movielens(arguments.movielens or find_movielens())
    users = range(min(arguments.users or data.users, data.users))
    engine = RecallEngine(EngineSettings(model=arguments.model, device=arguments.device, context_pages=PAGES))
    catalog = load_source(
        arguments.model / "items.parquet", model=engine.spec.id, sizes=engine.spec.level_sizes, version="base"
    )
    engine.catalogs.stage(catalog)
    engine.catalogs.activate("base")

    started = time.perf_counter()
    results = {
        "history_allowed": measure(data, engine, users, arguments.width, exclude_history=False),
        "history_excluded": measure(data, engine, users, arguments.width, exclude_history=True),
    }
    report = {
        "data": "MovieLens-1M, leave-last-out, full catalog",
        "users": len(users),
        "items": data.items,
        "events": len(data.events),
        "model": engine.spec.id,
        "parameters": parameters(arguments.model),
        "beam_width": arguments.width,
        **results,
        "dtype": str(engine.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name() if engine.device.type == "cuda" else f"{platform.machine()} CPU",
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - started, 1),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def measure(
    data: MovieLens, engine: RecallEngine, users: Sequence[int], width: int, exclude_history: bool
) -> dict[str, dict[str, float]]:
    targets = [int(data.history(user)[-1]) for user in users]
    order = popularity_order(data.histories(drop_last=1), data.items)
    popular = [most_popular(order, data.history(user)[:-1] if exclude_history else NO_ITEMS, K) for user in users]
    recalled = recall_all(data, engine, users, width, exclude_history)
    rows = {"model": hit_rate_and_ndcg(recalled, targets, K), "popularity": hit_rate_and_ndcg(popular, targets, K)}
    return {name: {"hr@10": round(hit, 4), "ndcg@10": round(ndcg, 4)} for name, (hit, ndcg) in rows.items()}


def recall_all(
    data: MovieLens, engine: RecallEngine, users: Sequence[int], width: int, exclude_history: bool
) -> list[NDArray[np.int64]]:
    """Top ten of every user, in the order of ``users``; users with histories of like length share a batch."""
    by_length = sorted(users, key=lambda user: len(data.history(user)))
    beam = BeamPolicy((width,) * len(engine.spec.levels))
    found: dict[int, NDArray[np.int64]] = {}
    for batch in track(list(batches(by_length, engine.settings.max_batch)), "recalling"):
        histories = [data.history(user)[:-1] for user in batch]
        requests = [
            RecallRequest(beam, K, history=history, exclude=history if exclude_history else NO_ITEMS)
            for history in histories
        ]
        for user, answer in zip(batch, engine.recall(requests), strict=True):
            if not isinstance(answer, RecallResult):
                raise answer
            found[user] = np.asarray(answer.items, dtype=np.int64)
    return [found[user] for user in users]


def batches(users: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for begin in range(0, len(users), size):
        yield users[begin : begin + size]


def parameters(model: Path) -> int:
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", "np") as weights:
        return sum(int(np.prod(weights.get_slice(name).get_shape())) for name in weights.keys())  # noqa: SIM118


if __name__ == "__main__":
    main()
