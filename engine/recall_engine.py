"""The engine's front: requests in, recalled items out."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import torch

from engine.catalog.resident import ResidentCatalog
from engine.catalog.store import CatalogStore
from engine.errors import DeviceError, ModelError, RequestError
from engine.model.decoder import Decoder
from engine.model.head import LevelHead
from engine.model.rotary import rotary_tables
from engine.model.spec import ModelSpec
from engine.model.weights import load_weights
from engine.request import RecallRequest, RecallResult
from engine.runtime.admission import Admission
from engine.runtime.clock import PhaseClock
from engine.runtime.packing import pack
from engine.runtime.plan import plan
from engine.runtime.prepared import PreparedRequest, prepare
from engine.runtime.prompts import PromptBuilder
from engine.search.beam_search import SearchInput, SearchOutput, beam_search
from engine.search.exclusions import pack_exclusions
from engine.search.policy import BatchPolicy
from engine.settings import PAGE_TOKENS, EngineSettings
from engine.state.beam_kv import BeamKV
from engine.state.context_kv import ContextKV
from engine.state.page_pool import PagePool
from kernels.backend import NO_ITEM, LevelTries

Answer = RecallResult | RequestError


class RecallEngine:
    """One model on one device. ``recall`` is called from one thread; catalogs may be swapped from another."""

    def __init__(self, settings: EngineSettings, catalogs: CatalogStore | None = None) -> None:
        """Load the model. Raises ModelError."""
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.settings = settings
        self.spec = ModelSpec.load(settings.model)
        self.device, self.dtype = _placement(settings)
        self.catalogs = catalogs or CatalogStore(self.device, self.spec.id, self.spec.level_sizes)
        config = self.spec.decoder
        positions = min(config.max_positions, settings.context_pages * PAGE_TOKENS + len(self.spec.levels))
        weights = load_weights(settings.model, config, self.device, self.dtype)
        self._decoder = Decoder(config, weights, *rotary_tables(config, positions, self.device))
        self._head = LevelHead(weights.head, self.spec.levels)
        self._context = ContextKV(config, settings.context_pages, self.device, self.dtype)
        self._pool = PagePool(settings.context_pages)
        self._prompts = PromptBuilder(self.spec)
        self._admission = Admission(self.spec, settings, self._prompts)
        self._beam_bytes = 0

    def validate(self, request: RecallRequest) -> None:
        """Cheap checks. Raises RequestError ``bad_request`` or ``too_large``."""
        self._admission.check(request)

    def estimate_tokens(self, request: RecallRequest) -> int:
        """Upper bound of the request's context tokens."""
        return self._admission.estimate_tokens(request)

    def stats(self) -> dict[str, float]:
        """Use of the pools: pages, leases, high-water marks, bytes."""
        return {
            "context_pages": self._pool.capacity,
            "context_pages_used": self._pool.used,
            "context_pages_high_water": self._pool.high_water,
            "context_leases": self._pool.open_leases,
            "context_leases_leaked": self._pool.leaked,
            "context_bytes": self._context.nbytes,
            "beam_bytes_high_water": self._beam_bytes,
        }

    @torch.inference_mode()
    def recall(self, requests: Sequence[RecallRequest]) -> list[Answer]:
        """One answer per request, in order. Raises DeviceError if the device is lost."""
        answers: dict[int, Answer] = {}
        with ExitStack() as pins:
            prepared = list(self._prepare(requests, answers, pins))
            for batch in plan(prepared, self.settings.max_batch, self._pool.free):
                try:
                    found = self._run(batch)
                except torch.OutOfMemoryError as error:
                    refusal = RequestError("overloaded", f"out of device memory: {error}")
                    answers.update((item.place, refusal) for item in batch)
                except torch.AcceleratorError as error:
                    raise DeviceError(str(error)) from error
                else:
                    answers.update(found)
        return [answers[place] for place in range(len(requests))]

    def _prepare(
        self, requests: Sequence[RecallRequest], answers: dict[int, Answer], pins: ExitStack
    ) -> Iterable[PreparedRequest]:
        """Requests that can run; the others' errors go to ``answers``."""
        pinned: dict[str | None, ResidentCatalog] = {}
        for place, request in enumerate(requests):
            try:
                self.validate(request)
                if request.catalog not in pinned:
                    pinned[request.catalog] = pins.enter_context(self.catalogs.pin(request.catalog))
                yield prepare(place, request, pinned[request.catalog], self._prompts)
            except RequestError as error:
                answers[place] = error

    def _run(self, batch: Sequence[PreparedRequest]) -> Iterable[tuple[int, Answer]]:
        clock = PhaseClock(self.device)
        clock.mark()
        with ExitStack() as leases:
            pages = [leases.enter_context(self._pool.lease(item.pages)).pages for item in batch]
            prompts, table = pack([item.prompt.tokens for item in batch], pages, self.device)
            hidden = self._decoder.prefill(prompts, table, self._context)
            clock.mark()
            excluded = pack_exclusions([item.excluded for item in batch], [item.live for item in batch])
            policy = BatchPolicy.of(
                [item.request for item in batch],
                [[len(code) for code in item.catalog.code] for item in batch],
                self.device,
            )
            beams = self._beams(len(batch), max(policy.out_widths[:-1], default=0))
            search = SearchInput(hidden, table, self._tries(batch), excluded, policy, batch[0].request.score == "vocab")
            found = beam_search(search, self._decoder, self._head, self.spec.levels, self._context, beams)
            clock.mark()
            answers = list(self._answers(batch, found, (excluded != NO_ITEM).sum(dim=1), clock))
            for (_, answer), held in zip(answers, pages, strict=True):
                if isinstance(answer, RequestError):
                    self._context.clear(held)
            return answers

    def _beams(self, requests: int, width: int) -> BeamKV:
        steps = len(self.spec.levels) - 1
        beams = BeamKV(self.spec.decoder, steps, requests, width, self.device, self.dtype)
        self._beam_bytes = max(self._beam_bytes, beams.nbytes)
        return beams

    def _tries(self, batch: Sequence[PreparedRequest]) -> list[LevelTries]:
        return [
            LevelTries.of(
                [item.catalog.child_begin[level] for item in batch],
                [item.catalog.code[level] for item in batch],
                [item.catalog.item_begin[level + 1] for item in batch],
                [item.live for item in batch],
            )
            for level in range(len(self.spec.levels))
        ]

    def _answers(
        self, batch: Sequence[PreparedRequest], found: SearchOutput, excluded: torch.Tensor, clock: PhaseClock
    ) -> Iterable[tuple[int, Answer]]:
        items, scores, counts, widths, taken_out = (
            tensor.cpu().numpy() for tensor in (found.items, found.scores, found.count, found.widths, excluded)
        )
        prefill_ms, decode_ms = clock.milliseconds()
        for row, item in enumerate(batch):
            if widths[row, -1] < 0:
                yield item.place, RequestError("internal", "the model's scores are not numbers")
                continue
            request, catalog = item.request, item.catalog
            chosen = items[row, : counts[row]]
            yield (
                item.place,
                RecallResult(
                    items=catalog.ids_of(chosen),
                    scores=scores[row, : counts[row]].copy(),
                    model=self.spec.id,
                    catalog=catalog.version,
                    beam_widths=tuple(int(width) for width in widths[row]),
                    exhausted=item.live_total - int(taken_out[row]) < request.top_k,
                    truncated=item.prompt.truncated,
                    context_tokens=len(item.prompt.tokens),
                    unknown_items=item.prompt.unknown_items,
                    prefill_ms=prefill_ms,
                    decode_ms=decode_ms,
                    sids=catalog.codes_of(chosen) if request.return_sids else None,
                    fields=catalog.fields_of(request.return_fields, chosen) if request.return_fields else None,
                ),
            )


def _placement(settings: EngineSettings) -> tuple[torch.device, torch.dtype]:
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise ModelError("device is cuda, but torch finds no CUDA device")
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "float32" if name == "cpu" else "bfloat16"
    return torch.device(name), torch.float32 if dtype == "float32" else torch.bfloat16
