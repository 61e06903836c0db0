"""Beam search as it is defined, on any device: every prefix whole through the model, no cache, no padding, no kernel.

In float64 it is the oracle of ``engine/reference`` at sizes that this cannot reach. ``rounded``: weights, inputs of
products and of attention in bfloat16, all else in float32, which is the best that a bfloat16 engine can do.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from engine.catalog.trie import Trie

_SCORES_AT_ONCE = 1 << 28
"""Attention scores in memory at a time."""


class ReferenceDecoder:
    """A Qwen3 checkpoint."""

    def __init__(self, model: Path, device: torch.device, *, rounded: bool = False) -> None:
        config = json.loads((model / "config.json").read_text())
        self.device, self._rounded = device, rounded
        self._dtype = torch.float32 if rounded else torch.float64
        self._layers, self._heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        self._kv_heads, self._dim = int(config["num_key_value_heads"]), int(config["head_dim"])
        self._eps, self._theta = float(config["rms_norm_eps"]), float(config["rope_theta"])
        loaded = load_file(model / "model.safetensors", device=str(device))
        self._weights = {name: tensor.to(self._dtype) for name, tensor in loaded.items()}
        sid = json.loads((model / "sid.json").read_text())
        self._levels = [(level["token_base"], level["size"]) for level in sid["levels"]]
        self.token_bases = [base for base, _ in self._levels]

    def level_logp(self, prompt: Tensor, codes: Tensor) -> Tensor:
        """Log-probabilities of the next level's codes, ``[n, size]``, after the prompt and ``codes`` ``[n, level]``."""
        level = codes.shape[1]
        bases = torch.tensor(self.token_bases[:level], device=self.device, dtype=torch.int64)
        tokens = torch.cat([prompt.expand(len(codes), -1), codes + bases], dim=1)
        length = tokens.shape[1]
        step = max(1, _SCORES_AT_ONCE // (self._heads * length * length))
        hidden = torch.cat([self._hidden(part) for part in tokens.split(step)])
        base, size = self._levels[level]
        head = self._weights.get("lm_head.weight", self._weights["model.embed_tokens.weight"])
        return (self._round(hidden) @ head[base : base + size].T).log_softmax(dim=-1)

    def _hidden(self, tokens: Tensor) -> Tensor:
        """Normed state of the last token, ``[n, H]``."""
        x = self._weights["model.embed_tokens.weight"][tokens]
        for layer in range(self._layers):
            at = f"model.layers.{layer}"
            x = x + self._attention(f"{at}.self_attn", self._norm(f"{at}.input_layernorm", x))
            h = self._norm(f"{at}.post_attention_layernorm", x)
            gate, up = (self._linear(f"{at}.mlp.{name}_proj", h) for name in ("gate", "up"))
            x = x + self._linear(f"{at}.mlp.down_proj", torch.nn.functional.silu(gate) * up)
        return self._norm("model.norm", x[:, -1])

    def _attention(self, name: str, x: Tensor) -> Tensor:
        count, length, _ = x.shape

        def heads(projection: str, number: int) -> Tensor:
            return self._linear(f"{name}.{projection}", x).view(count, length, number, self._dim).transpose(1, 2)

        q, k, v = heads("q_proj", self._heads), heads("k_proj", self._kv_heads), heads("v_proj", self._kv_heads)
        q, k = self._rotate(self._norm(f"{name}.q_norm", q)), self._rotate(self._norm(f"{name}.k_norm", k))
        q, k, v = map(self._round, (q, k, v))
        k, v = (each.repeat_interleave(self._heads // self._kv_heads, dim=1) for each in (k, v))
        scores = q @ k.transpose(-1, -2) * self._dim**-0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=self.device).triu(1)
        mixed = scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1) @ v
        return self._linear(f"{name}.o_proj", mixed.transpose(1, 2).reshape(count, length, -1))

    def _rotate(self, x: Tensor) -> Tensor:
        half = self._dim // 2
        frequency = self._theta ** (-torch.arange(half, device=self.device, dtype=torch.float64) / half)
        angle = torch.arange(x.shape[2], device=self.device)[:, None] * frequency
        cos, sin = angle.cos().to(self._dtype), angle.sin().to(self._dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return x * (x.square().mean(dim=-1, keepdim=True) + self._eps).rsqrt() * self._weights[f"{name}.weight"]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return self._round(x) @ self._weights[f"{name}.weight"].T

    def _round(self, x: Tensor) -> Tensor:
        return x.bfloat16().to(self._dtype) if self._rounded else x


@dataclass(frozen=True, slots=True)
class Beams:
    """Beams of one level that some right run has, best first: ``nodes`` of the trie, their ``codes`` ``[n, level]``,
    scores; which of them the exact search has (``exact``), and which every right run has (``certain``).

    A run is right if it keeps the best at every level when scores are read to within epsilon.
    """

    nodes: Tensor
    codes: Tensor
    scores: Tensor
    exact: Tensor
    certain: Tensor


def search(
    decoder: ReferenceDecoder, trie: Trie, prompt: NDArray[np.int32], widths: Sequence[int], epsilon: float
) -> Beams:
    """The beams after the last level, every item live, scored by level."""
    device = decoder.device
    tokens = torch.tensor(prompt, device=device, dtype=torch.int64)
    one = torch.ones(1, dtype=torch.bool, device=device)
    beams = Beams(
        nodes=torch.zeros(1, dtype=torch.int64, device=device),
        codes=torch.zeros((1, 0), dtype=torch.int64, device=device),
        scores=torch.zeros(1, dtype=torch.float64, device=device),
        exact=one,
        certain=one,
    )
    for level, width in enumerate(widths):
        logp = decoder.level_logp(tokens, beams.codes).double()
        begin, code = (torch.tensor(array[level], device=device) for array in (trie.child_begin, trie.code))
        beams = _best(_children(beams, logp, begin.long(), code.long()), width, epsilon)
    return beams


def _children(beams: Beams, logp: Tensor, begin: Tensor, code: Tensor) -> Beams:
    """All of them, best first; equal scores in the order of the trie. Flags are their parents'."""
    first, count = begin[beams.nodes], begin[beams.nodes + 1] - begin[beams.nodes]
    parent = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    node = torch.arange(len(parent), device=count.device) + (first - (count.cumsum(0) - count))[parent]
    score = beams.scores[parent] + logp[parent, code[node]]
    order = node.argsort()
    order = order[score[order].argsort(descending=True, stable=True)]
    node, parent = node[order], parent[order]
    codes = torch.cat([beams.codes[parent], code[node, None]], dim=1)
    return Beams(node, codes, score[order], beams.exact[parent], beams.certain[parent])


def _best(found: Beams, width: int, epsilon: float) -> Beams:
    down = -found.scores
    must = torch.searchsorted(down[found.certain], down - epsilon)
    may = torch.searchsorted(down, down + epsilon, right=True) - 1
    exact = found.exact & (found.exact.cumsum(0) <= width)
    keep = must < width
    return Beams(
        found.nodes[keep], found.codes[keep], found.scores[keep], exact[keep], (found.certain & (may < width))[keep]
    )
