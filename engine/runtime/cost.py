"""What a model costs before it is loaded: memory, and time by a roofline with measured efficiencies."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.model.decoder_config import DecoderConfig
from engine.settings import PAGE_TOKENS, EngineSettings
from kernels.attention.splits import MEASURED, PROMPTS, TILE_ROWS

GRAPH_BYTES = 8 << 20
"""What the driver keeps for one captured graph, rounded up from what was seen."""

SCALE_BYTES = 4
"""Of a float32 scale."""


@dataclass(frozen=True, slots=True)
class Cost:
    """``level_sizes``: codes of each level; ``itemsize``: bytes of a weight and of an element of the caches.

    ``fp8``: the layers' matrices have one byte an element, and a scale for each output.
    """

    config: DecoderConfig
    level_sizes: Sequence[int]
    itemsize: int
    fp8: bool = False

    @property
    def layer_parameters(self) -> int:
        """Elements of all layers' matrices, each used once a token."""
        c = self.config
        attention = self._qkv * c.hidden_size + c.heads * c.head_dim * c.hidden_size
        return c.layers * (attention + 3 * c.intermediate_size * c.hidden_size)

    @property
    def layer_bytes(self) -> int:
        """Memory of all layers' matrices."""
        c = self.config
        if not self.fp8:
            return self.layer_parameters * self.itemsize
        outputs = self._qkv + 2 * c.hidden_size + 2 * c.intermediate_size
        return self.layer_parameters + c.layers * outputs * SCALE_BYTES

    @property
    def weight_bytes(self) -> int:
        c = self.config
        embeddings = (1 if c.tied_head else 2) * c.vocab_size * c.hidden_size
        return self.layer_bytes + embeddings * self.itemsize

    @property
    def page_bytes(self) -> int:
        """One page of ContextKV."""
        return PAGE_TOKENS * self._kv_token_bytes

    def context_bytes(self, tokens: int) -> int:
        """Keys and values of one context, in whole pages."""
        return -(-tokens // PAGE_TOKENS) * self.page_bytes

    def beam_bytes(self, rows: int) -> int:
        """Keys and values of the decoded tokens of so many beams."""
        return (len(self.level_sizes) - 1) * rows * self._kv_token_bytes

    def work_bytes(self, settings: EngineSettings) -> int:
        """Intermediate results of a prefill and a search at the limits, which may run side by side."""
        prefill = self._prefill_bytes(settings.max_batch_tokens) + self._parts_bytes(settings)
        return prefill + self._search_bytes(settings)

    def graph_bytes(self, settings: EngineSettings) -> int:
        """The graphs, and the memory of their own that the largest works in."""
        if not settings.graphs:
            return 0
        prefill = self._prefill_bytes(settings.graph_prefill_tokens) + self._parts_bytes(settings)
        return settings.max_graphs * GRAPH_BYTES + prefill + self._search_bytes(settings)

    def _prefill_bytes(self, tokens: int) -> int:
        c = self.config
        elements = 5 * c.hidden_size + 2 * self._qkv + 3 * c.intermediate_size
        return tokens * elements * self.itemsize

    def _parts_bytes(self, settings: EngineSettings) -> int:
        """Of attention of a few new tokens over a long context."""
        c = self.config
        return PROMPTS.tiles * settings.max_batch * TILE_ROWS * c.kv_heads * c.head_dim * self.itemsize

    def _search_bytes(self, settings: EngineSettings) -> int:
        """Scores, and the parts of attention over the longest context, beside what every pass takes."""
        rows, splits = settings.max_batch_rows, MEASURED.most_splits(-(-settings.max_batch_tokens // PAGE_TOKENS))
        scores = 2 * max(self.level_sizes) * 4
        parts = splits * self.config.heads * self.config.head_dim * self.itemsize
        return self._prefill_bytes(rows) + rows * (scores + parts)

    @property
    def _qkv(self) -> int:
        c = self.config
        return (c.heads + 2 * c.kv_heads) * c.head_dim

    @property
    def _kv_token_bytes(self) -> int:
        c = self.config
        return c.layers * 2 * c.kv_heads * c.head_dim * self.itemsize
