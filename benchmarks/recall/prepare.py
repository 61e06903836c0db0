"""Write what training needs: ``items.parquet`` (item id, SID), ``sid.json`` and ``events.npz`` (never committed).

python -m benchmarks.recall.prepare --out .data/recall
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.recall.semantic_ids import item_vectors, residual_kmeans, tell_apart
from consumer.demo.movielens import find_movielens, load_movielens

BOS = 1  # token 0 is padding
FIRST_CODE = 2
LAST_LEVEL = 64
MAX_HISTORY = 200
HISTORY_DROP = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--movielens", type=Path, help="directory of ml-1m.{item,inter}; default: the installed package"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[256, 256, 256], help="codes of each residual k-means level"
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    data = load_movielens(arguments.movielens or find_movielens())
    training = np.concatenate(list(data.histories(drop_last=2)))
    popularity = np.bincount(training - 1, minlength=data.items)
    codes = tell_apart(residual_kmeans(item_vectors(data), arguments.sizes), popularity)
    sizes = [*arguments.sizes, LAST_LEVEL]
    if codes[:, -1].max() >= LAST_LEVEL:
        raise SystemExit(f"{codes[:, -1].max() + 1} items share one SID prefix; the last level has {LAST_LEVEL} codes")

    arguments.out.mkdir(parents=True, exist_ok=True)
    sids = pa.array(codes.tolist(), type=pa.list_(pa.int32()))
    pq.write_table(pa.table({"item_id": np.arange(1, data.items + 1), "sid": sids}), arguments.out / "items.parquet")
    (arguments.out / "sid.json").write_text(json.dumps(sid_json(sizes), indent=1) + "\n")
    np.savez_compressed(arguments.out / "events.npz", events=data.events.astype(np.int16), begin=data.begin)
    nodes = [len(np.unique(codes[:, : level + 1], axis=0)) for level in range(len(sizes))]
    print(f"{data.items} items, sizes {sizes}, prefixes per level {nodes}")


def sid_json(sizes: list[int]) -> dict[str, object]:
    bases = np.concatenate(([0], np.cumsum(sizes)))[:-1] + FIRST_CODE
    return {
        "id": "movielens-1m",
        "levels": [{"token_base": int(base), "size": size} for base, size in zip(bases, sizes, strict=True)],
        "prompts": {"default": {"prefix": [BOS], "before_item": [], "after_item": [], "suffix": []}},
        "max_history_items": MAX_HISTORY,
        "history_drop": HISTORY_DROP,
    }


if __name__ == "__main__":
    main()
