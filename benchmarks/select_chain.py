"""The three selection steps of a search over a trie on the device, on random logits."""

from functools import partial

import torch
from torch import Tensor

from benchmarks.kernel_cases import CODES, DeviceTrie, no_exclusions
from benchmarks.measure import call_us
from kernels.selection.expand_select import Selection
from kernels.selection.tries import LevelTries
from kernels.selection.triton_expand_select import SelectionWorkspace, expand_select

LEVELS = 3


class SelectChain:
    """``parents_of_last``: the last step expands the nodes that the step before it did, because the trie repeats."""

    def __init__(self, trie: DeviceTrie, beams: int, batch: int, parents_of_last: bool) -> None:
        self.trie, self.beams, self.batch, self.repeat_last = trie, beams, batch, parents_of_last
        widths = [1, beams, beams]
        self.sets = [[torch.randn(batch, width, CODES, device="cuda") for width in widths] for _ in range(2)]
        self.space = [SelectionWorkspace.of(batch, w, CODES, beams, torch.device("cuda")) for w in widths]
        self.tries = self._tries(1.0)
        self.keep = torch.full((batch,), beams, dtype=torch.int32, device="cuda")
        self.one = torch.ones(batch, dtype=torch.int32, device="cuda")
        self.margin = torch.full((batch,), torch.inf, device="cuda")
        self.legal = torch.zeros(batch, dtype=torch.bool, device="cuda")
        self.root = Selection(
            nodes=torch.zeros(batch, 1, dtype=torch.int32, device="cuda"),
            scores=torch.zeros(batch, 1, device="cuda"),
            parents=self.one,
            codes=self.one,
            width=self.one,
        )
        self.excluded = no_exclusions(batch)

    def step(
        self, level: int, before: Selection, logits: Tensor, tries: list[LevelTries], early_end: bool = True
    ) -> Selection:
        return expand_select(
            logits, before.scores, before.nodes, before.width, self.keep, tries[level], self.excluded, None, self.legal,
            self.margin, self.one, self.beams, self.space[level], early_end,
        )  # fmt: skip

    def run(self, logits: list[Tensor], tries: list[LevelTries], early_end: bool = True) -> list[Selection]:
        done = [self.root]
        for level in range(LEVELS):
            before = done[1] if level == 2 and self.repeat_last else done[-1]
            done.append(self.step(level, before, logits[level], tries, early_end))
        return done

    def time(self, early_end: bool = True, live_share: float = 1.0, equal: bool = False) -> float:
        tries = self.tries if live_share == 1.0 else self._tries(live_share)
        sets = [[torch.zeros_like(x) for x in self.sets[0]]] if equal else self.sets
        return call_us([partial(self.run, x, tries, early_end) for x in sets])

    def time_step(self, level: int) -> float:
        before = self.run(self.sets[0], self.tries)[level]
        return call_us([partial(self.step, level, before, x[level], self.tries) for x in self.sets])

    def time_torch(self) -> float:
        """One unconstrained step by ``log_softmax`` and ``topk``, which has no rule for ties."""
        scores = self.run(self.sets[0], self.tries)[1].scores[..., None]
        return call_us([partial(_torch_step, x[1], scores, self.beams) for x in self.sets])

    def logit_bytes(self) -> int:
        return sum(x.nbytes for x in self.sets[0])

    def short_list(self) -> int:
        """Longest list of the second step that had to be put in order."""
        self.run(self.sets[0], self.tries)
        torch.cuda.synchronize()
        return int(self.space[1].counts.view(-1)[-4 * self.batch :].view(-1, 4)[:, 0].max())

    def check(self) -> None:
        """Every request's second step: scores to 1e-4 of float64, selection bit for bit that of a plain sort."""
        before = self.run(self.sets[0], self.tries)[1]
        chosen, space = self.step(1, before, self.sets[0][1], self.tries), self.space[1]
        places = torch.arange(CODES, device="cuda")
        for r in range(self.batch):
            width = int(before.width[r])
            first, count = (space.children[i][r, :width, None] for i in (0, 1))
            exists = places < count
            score = space.candidates[r, :width][exists]
            node = (first + places)[exists]
            parent = torch.arange(width, device="cuda")[:, None].expand(-1, CODES)[exists]
            order = node.argsort()
            order = order[score[order].argsort(descending=True, stable=True)][: self.beams]
            kept = len(order)
            exact = self.sets[0][1][r, :width].double().log_softmax(-1) + before.scores[r, :width, None].double()
            code = self.tries[1].code[r][node.long()].long()
            right = (
                int(chosen.width[r]) == kept
                and torch.equal(chosen.nodes[r, :kept], node[order].int())
                and torch.equal(chosen.scores[r, :kept], score[order])
                and torch.equal(chosen.parents[r, :kept], parent[order].int())
                and float((exact[parent, code] - score).abs().max()) < 1e-4
            )
            if not right:
                raise RuntimeError(f"request {r}: the selection is not that of a plain sort")

    def _tries(self, share: float) -> list[LevelTries]:
        live = self.trie.live(share)
        return [self.trie.tries(level, live, self.batch) for level in range(LEVELS)]


def _torch_step(logits: Tensor, scores: Tensor, beams: int) -> object:
    return (logits.log_softmax(-1) + scores).flatten(1).topk(beams)
