"""Prepared events as training batches and evaluation prompts."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

IGNORE = -100


@dataclass(frozen=True, slots=True)
class Dataset:
    """``events`` int64 ``[n]`` item rows (0-based) of all users; ``begin`` int64 ``[users + 1]``.

    ``tokens`` int64 ``[items, levels]``: the token of each SID code. ``bases``, ``sizes``: token range of each level.
    """

    events: NDArray[np.int64]
    begin: NDArray[np.int64]
    tokens: NDArray[np.int64]
    bases: tuple[int, ...]
    sizes: tuple[int, ...]
    bos: int
    max_history: int
    history_drop: int

    @classmethod
    def load(cls, directory: Path) -> "Dataset":
        spec = json.loads((directory / "sid.json").read_text())
        arrays = np.load(directory / "events.npz")
        codes = np.array(pq.read_table(directory / "items.parquet")["sid"].to_pylist(), dtype=np.int64)
        bases = tuple(level["token_base"] for level in spec["levels"])
        return cls(
            events=arrays["events"].astype(np.int64) - 1,
            begin=arrays["begin"],
            tokens=codes + np.array(bases),
            bases=bases,
            sizes=tuple(level["size"] for level in spec["levels"]),
            bos=spec["prompts"]["default"]["prefix"][0],
            max_history=spec["max_history_items"],
            history_drop=spec["history_drop"],
        )

    @property
    def vocabulary(self) -> int:
        return self.bases[-1] + self.sizes[-1]

    @property
    def users(self) -> int:
        return len(self.begin) - 1

    def history(self, user: int, drop_last: int) -> NDArray[np.int64]:
        """What the service would use of a user's events without the newest ``drop_last``: at most ``max_history``."""
        events = self.events[self.begin[user] : self.begin[user + 1] - drop_last]
        over = len(events) - self.max_history
        return events[-(-over // self.history_drop) * self.history_drop :] if over > 0 else events

    def target(self, user: int, drop_last: int) -> int:
        return int(self.events[self.begin[user + 1] - drop_last])

    def prompt(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate(([self.bos], self.tokens[items].ravel()))

    def training_batches(
        self, rng: np.random.Generator, budget: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """One epoch as (inputs, labels), int64 ``[rows, length]`` of about ``budget`` tokens.

        Every training event is a target once: a user's events are cut at random offsets into pieces of at most
        ``max_history``; pieces of like length share a batch; labels of padding are IGNORE.
        """
        pieces = [piece for user in range(self.users) for piece in self._pieces(user, rng)]
        length = np.array([len(piece) for piece in pieces]) * rng.uniform(0.9, 1.1, len(pieces))
        batches: list[list[NDArray[np.int64]]] = [[]]
        for index in np.argsort(length):
            widest = 1 + len(pieces[index]) * len(self.sizes)
            if (len(batches[-1]) + 1) * widest > budget and batches[-1]:
                batches.append([])
            batches[-1].append(pieces[index])
        for index in rng.permutation(len(batches)):
            yield self._pack(batches[index])

    def _pieces(self, user: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        events = self.events[self.begin[user] : self.begin[user + 1] - 2]
        first = int(rng.integers(1, self.max_history + 1)) if len(events) > self.max_history else 0
        cuts = [0, *range(first, len(events), self.max_history)] if first else [0]
        for begin, end in zip(cuts, [*cuts[1:], len(events)], strict=True):
            yield events[begin:end]

    def _pack(self, pieces: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        width = max(len(piece) for piece in pieces) * len(self.sizes)
        inputs = np.zeros((len(pieces), width), dtype=np.int64)
        labels = np.full((len(pieces), width), IGNORE, dtype=np.int64)
        for row, piece in enumerate(pieces):
            prompt = self.prompt(piece)
            inputs[row, : len(prompt) - 1] = prompt[:-1]
            labels[row, : len(prompt) - 1] = prompt[1:]
        return inputs, labels
