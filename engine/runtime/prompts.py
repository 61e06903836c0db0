"""From a history to the tokens of a prompt, vectorised."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.catalog.looked_up import LookedUp
from engine.catalog.resident import ResidentCatalog
from engine.errors import RequestError
from engine.model.spec import ModelSpec, Prompt
from engine.request import ItemIds


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """``tokens``: int32 ``[n]``; ``items``: indexes of the known items used; ``truncated``: the history was cut.

    ``common``: tokens at the beginning that every prompt of the template has. ``looked_up``: for the user's next one.
    """

    tokens: NDArray[np.int32]
    items: NDArray[np.int32]
    truncated: bool
    unknown_items: int
    common: int = 0
    looked_up: LookedUp | None = None


class PromptBuilder:
    """Builds prompts by the templates of ``sid.json``."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._bases = np.array([level.token_base for level in spec.levels], dtype=np.int32)
        self._slots = frozenset().union(*(prompt.slots for prompt in spec.prompts.values()))

    def check(self, template: str, context: Mapping[str, int | str]) -> None:
        """Raises RequestError ``bad_request`` for an unknown template or slot, or a slot without a usable value."""
        prompt = self._template(template)
        unknown = [name for name in context if name not in self._slots]
        if unknown:
            raise RequestError("bad_request", f"no template has a slot {unknown[0]!r}")
        for name in prompt.slots:
            self._slot_token(name, context)

    def upper_bound(self, template: str, events: int) -> int:
        """Tokens of the prompt if every item of the history is known."""
        return self._spec.prompt_tokens(self._template(template), self._kept(events))

    def suffix_tokens(self, template: str) -> int:
        """Tokens of the prompt behind the history."""
        return len(self._template(template).suffix)

    def build(
        self,
        template: str,
        context: Mapping[str, int | str],
        history: ItemIds,
        catalog: ResidentCatalog,
        before: LookedUp | None = None,
    ) -> BuiltPrompt:
        """The prompt of a history (oldest first). ``before``: of an earlier prompt of the user.

        Raises RequestError ``bad_request``.
        """
        prompt = self._template(template)
        kept = self._kept(len(history))
        used = history[len(history) - kept :]
        looked_up = LookedUp.of(used, catalog, before)
        items = looked_up.rows[looked_up.rows >= 0]
        parts = [
            self._fixed(prompt.prefix, context),
            self._item_tokens(prompt, catalog.codes_of(items)),
            self._fixed(prompt.suffix, context),
        ]
        return BuiltPrompt(
            np.concatenate(parts), items, kept < len(history), kept - len(items), len(prompt.fixed_beginning), looked_up
        )

    def _kept(self, events: int) -> int:
        """Events left by the cap; whole blocks of ``history_drop`` go, so prompts begin alike in between."""
        excess = events - self._spec.max_history_items
        if excess <= 0:
            return events
        return events - -(-excess // self._spec.history_drop) * self._spec.history_drop

    def _item_tokens(self, prompt: Prompt, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        before, after = len(prompt.before_item), len(prompt.after_item)
        rows = np.empty((len(codes), before + len(self._bases) + after), dtype=np.int32)
        rows[:, :before] = prompt.before_item
        rows[:, before : before + len(self._bases)] = codes + self._bases
        rows[:, before + len(self._bases) :] = prompt.after_item
        return rows.ravel()

    def _fixed(self, parts: tuple[int | str, ...], context: Mapping[str, int | str]) -> NDArray[np.int32]:
        tokens = [self._slot_token(part, context) if isinstance(part, str) else part for part in parts]
        return np.array(tokens, dtype=np.int32)

    def _slot_token(self, name: str, context: Mapping[str, int | str]) -> int:
        value = context.get(name)
        if value is None:
            raise RequestError("bad_request", f"the template needs a context value for its slot {name!r}")
        token = self._spec.slots.get(name, {}).get(value) if isinstance(value, str) else value
        if token is None or not 0 <= token < self._spec.decoder.vocab_size:
            raise RequestError("bad_request", f"slot {name!r} has no token for {value!r}")
        return token

    def _template(self, name: str) -> Prompt:
        try:
            return self._spec.prompts[name]
        except KeyError:
            raise RequestError("bad_request", f"the model has no template {name!r}") from None
