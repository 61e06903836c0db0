"""Train a small Qwen3 on next-item prediction over SID tokens and write a model directory.

    python -m benchmarks.recall.train --data .data/recall --out consumer/demo/model --minutes 6

One GPU is enough (``--minutes 6`` on an H200); ``--device cpu`` works and is slow. The learning rate falls to zero at
the end of the time or of the epochs, whichever is nearer. The weights kept are the moving average with the best
validation HR@10; they are written in bfloat16.
"""

import argparse
import copy
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.recall.beam import ItemTrie, evaluate
from benchmarks.recall.dataset import IGNORE, Dataset

WARM_UP_STEPS = 200
VALIDATION_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Progress:
    """Share of the run that is over, by time or by epochs, 0 to 1."""

    started: float
    seconds: float
    steps: int

    def at(self, step: int) -> float:
        return min(1.0, max((time.monotonic() - self.started) / self.seconds, step / self.steps))


def build_model(vocabulary: int, hidden: int, layers: int, intermediate: int) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def add_dropout(model: Qwen3ForCausalLM, rate: float) -> None:
    """Dropout after the embedding and on each residual branch; Qwen3 itself has none there. Off in ``eval()``."""

    def drop(module: nn.Module, _: object, output: object) -> object:
        if isinstance(output, tuple):
            return F.dropout(output[0], rate, module.training), *output[1:]
        return F.dropout(output, rate, module.training)

    model.model.embed_tokens.register_forward_hook(drop)
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(drop)
        layer.mlp.register_forward_hook(drop)


def optimizer_of(model: nn.Module, rate: float, decay: float, fused: bool) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=fused)


def loss_of(model: Qwen3ForCausalLM, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = model(inputs, use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE)


class MovingAverage:
    """Exponential moving average of a model's weights, in a copy that only evaluates."""

    def __init__(self, model: Qwen3ForCausalLM, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._decay = decay
        self._steps = 0

    @torch.no_grad()
    def update(self, model: Qwen3ForCausalLM) -> None:
        self._steps += 1
        weight = 1 - min(self._decay, self._steps / (self._steps + 10))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), weight)


class Trainer:
    """One run: ``fit`` trains, validates now and then, and writes the best weights to ``--out``."""

    def __init__(self, arguments: argparse.Namespace, dataset: Dataset, device: torch.device) -> None:
        self._arguments = arguments
        self._dataset = dataset
        self._device = device
        self._trie = ItemTrie(dataset, device)
        self._rng = np.random.default_rng(arguments.seed)
        self._validation_users = self._rng.permutation(dataset.users)[: arguments.validation_users]
        self._model = build_model(dataset.vocabulary, arguments.hidden, arguments.layers, arguments.intermediate)
        self._model.to(device).train()
        self._average = MovingAverage(self._model, arguments.average)
        add_dropout(self._model, arguments.dropout)
        self._optimizer = optimizer_of(self._model, arguments.rate, arguments.decay, fused=device.type == "cuda")
        self._best, self._stale = -1.0, 0
        self._losses: list[torch.Tensor] = []

    def fit(self) -> float:
        """Returns the epochs that were trained."""
        arguments = self._arguments
        per_epoch = sum(1 for _ in self._batches())
        progress = Progress(time.monotonic(), arguments.minutes * 60, arguments.epochs * per_epoch)
        step, next_check = 0, arguments.first_check
        while True:
            for inputs, labels in self._batches():
                share = progress.at(step)
                warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
                self._step(inputs, labels, arguments.rate * warm_up * 0.5 * (1 + math.cos(math.pi * share)))
                step += 1
                if share < min(next_check, 1.0):
                    continue
                next_check = share + arguments.check_every
                self._validate(f"{share:4.0%} epoch {step / per_epoch:.1f}")
                if share >= 1.0 or self._stale >= arguments.patience:
                    return step / per_epoch

    def _batches(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        return self._dataset.training_batches(self._rng, self._arguments.batch_tokens)

    def _step(self, inputs: NDArray[np.int64], labels: NDArray[np.int64], rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        device = self._device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(self._model, torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device))
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._average.update(self._model)
        self._losses.append(loss.detach())

    def _validate(self, when: str) -> None:
        arguments = self._arguments
        users, batch = self._validation_users, arguments.eval_batch
        hit, ndcg = evaluate(self._average.model, self._dataset, self._trie, users, 2, VALIDATION_WIDTH, batch)
        loss = float(torch.stack(self._losses).mean())
        self._losses.clear()
        print(f"{when} loss {loss:.4f} validation HR@10 {hit:.4f} NDCG@10 {ndcg:.4f}", flush=True)
        self._stale += 1
        if hit > self._best:
            self._best, self._stale = hit, 0
            save(self._average.model, arguments.data, arguments.out)


def main() -> None:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    dataset = Dataset.load(arguments.data)
    epochs = Trainer(arguments, dataset, device).fit()

    kept = Qwen3ForCausalLM.from_pretrained(arguments.out, dtype=torch.float32).to(device).eval()
    users = np.arange(dataset.users)[: arguments.final_users]
    trie = ItemTrie(dataset, device)
    print(f"{epochs:.1f} epochs, {sum(p.numel() for p in kept.parameters()):,} parameters")
    for part, drop_last in (("validation", 2), ("test", 1)):
        hit, ndcg = evaluate(kept, dataset, trie, users, drop_last, VALIDATION_WIDTH, arguments.eval_batch)
        print(f"{part}: HR@10 {hit:.4f} NDCG@10 {ndcg:.4f}, {len(users)} users")


def save(model: Qwen3ForCausalLM, data: Path, out: Path) -> None:
    """A whole model directory: bfloat16 weights, config, ``sid.json`` and the item table."""
    out.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    for name in ("sid.json", "items.parquet"):
        if data.resolve() != out.resolve():
            shutil.copyfile(data / name, out / name)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--average", type=float, default=0.998)
    parser.add_argument("--batch-tokens", type=int, default=24_000)
    parser.add_argument("--first-check", type=float, default=0.45, help="share of the run before the first validation")
    parser.add_argument("--check-every", type=float, default=0.135)
    parser.add_argument("--patience", type=int, default=3, help="validations without a better HR@10 before it stops")
    parser.add_argument("--validation-users", type=int, default=2000)
    parser.add_argument("--final-users", type=int, default=None)
    parser.add_argument("--eval-batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
