"""Constrained beam search through transformers: slow and plain, used to pick the model while it trains."""

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, Qwen3ForCausalLM

from benchmarks.recall.dataset import Dataset
from consumer.demo.ranking import hit_rate_and_ndcg


class ItemTrie:
    """Children of every prefix as dense tables: ``child[l]`` int64 ``[nodes(l), size(l)]``, -1 where no item is."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        codes = dataset.tokens - np.array(dataset.bases)
        self.child: list[torch.Tensor] = []
        parent = np.zeros(len(codes), dtype=np.int64)
        for level, size in enumerate(dataset.sizes):
            _, node = np.unique(codes[:, : level + 1], axis=0, return_inverse=True)
            table = np.full((parent.max() + 1, size), -1, dtype=np.int64)
            table[parent, codes[:, level]] = node
            self.child.append(torch.from_numpy(table).to(device))
            parent = node
        item = np.empty(len(codes), dtype=np.int64)
        item[parent] = np.arange(len(codes))
        self.item = torch.from_numpy(item).to(device)


@torch.inference_mode()
def recall(
    model: Qwen3ForCausalLM, dataset: Dataset, trie: ItemTrie, histories: list[NDArray[np.int64]], width: int
) -> NDArray[np.int64]:
    """Best ``width`` item rows for each history, int64 ``[n, width]``, best first."""
    device = trie.item.device
    prompts = [dataset.prompt(history) for history in histories]
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, longest - len(prompt) :] = 1
    tokens, mask = tokens.to(device), mask.to(device)
    position = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache()
    logits = model(tokens, attention_mask=mask, position_ids=position, past_key_values=cache, logits_to_keep=1).logits
    rows, beams = len(prompts), 1
    node = torch.zeros(rows, 1, dtype=torch.int64, device=device)
    score = torch.zeros(rows, 1, device=device)
    for level, (base, size) in enumerate(zip(dataset.bases, dataset.sizes, strict=True)):
        logp = logits[:, -1, base : base + size].float().log_softmax(-1).view(rows, beams, size)
        legal = trie.child[level][node] >= 0
        legal &= score.isfinite().unsqueeze(-1)
        total = torch.where(legal, score.unsqueeze(-1) + logp, -torch.inf).view(rows, -1)
        score, pick = total.topk(min(width, total.shape[1]), dim=1)
        parent, code = pick // size, pick % size
        node = trie.child[level][node.gather(1, parent), code].clamp(min=0)
        if level + 1 == len(dataset.sizes):
            break
        origin = (torch.arange(rows, device=device).unsqueeze(1) * beams + parent).view(-1)
        cache.reorder_cache(origin)
        mask = torch.cat((mask[origin], torch.ones(len(origin), 1, dtype=mask.dtype, device=device)), dim=1)
        position = mask.sum(1, keepdim=True) - 1
        beams = score.shape[1]
        logits = model(
            (code + base).view(-1, 1), attention_mask=mask, position_ids=position, past_key_values=cache
        ).logits
    return trie.item[node].cpu().numpy()


def evaluate(
    model: Qwen3ForCausalLM,
    dataset: Dataset,
    trie: ItemTrie,
    users: NDArray[np.int64],
    drop_last: int,
    width: int,
    batch: int,
) -> tuple[float, float]:
    """HR@10 and NDCG@10 over ``users``; ``drop_last`` 1 predicts the last event (test), 2 the one before."""
    ordered = sorted(users.tolist(), key=lambda user: len(dataset.history(user, drop_last)))
    ranked = []
    for begin in range(0, len(ordered), batch):
        histories = [dataset.history(user, drop_last) for user in ordered[begin : begin + batch]]
        ranked.append(recall(model, dataset, trie, histories, width))
    targets = [dataset.target(user, drop_last) for user in ordered]
    return hit_rate_and_ndcg(list(np.concatenate(ranked)), targets)
