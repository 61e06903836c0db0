"""The engine's front: requests in, recalled items out."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

import torch

from engine.catalog.resident import ResidentCatalog
from engine.catalog.store import CatalogStore
from engine.errors import RequestError
from engine.model.decoder import Decoder
from engine.model.head import LevelHead
from engine.model.rotary import rotary_tables
from engine.model.spec import ModelSpec
from engine.model.weights import load_weights
from engine.request import ItemIds, RecallRequest
from engine.runtime.admission import Admission
from engine.runtime.answers import Answer
from engine.runtime.executor import Executor
from engine.runtime.graph_plan import prefill_shapes, search_shapes
from engine.runtime.graphs import CudaCapture
from engine.runtime.host_sessions import HostSessions
from engine.runtime.lane import Lane
from engine.runtime.memory import context_pages, room_for
from engine.runtime.pipeline import Pipeline
from engine.runtime.placement import Placement
from engine.runtime.plan import BatchLimits, plan
from engine.runtime.prepared import PreparedRequest, prepare
from engine.runtime.prompts import PromptBuilder
from engine.runtime.residency import Residency
from engine.runtime.running import Running
from engine.runtime.stages import Stages
from engine.settings import PAGE_TOKENS, EngineSettings
from engine.state.beam_kv import BeamMemory
from engine.state.context_kv import ContextKV
from engine.state.page_pool import PagePool
from engine.state.sessions import SessionTable
from kernels.attention.choice import fits_triton

__all__ = ["Answer", "RecallEngine", "Running"]

log = logging.getLogger(__name__)


class RecallEngine:
    """One model on one device. Called from one thread; catalogs may be swapped from another."""

    def __init__(self, settings: EngineSettings, catalogs: CatalogStore | None = None) -> None:
        """Load the model. Raises ModelError."""
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.settings = settings
        self.spec = ModelSpec.load(settings.model)
        placement = Placement.of(settings)
        self.device, self.dtype = placement.device, placement.dtype
        self.catalogs = catalogs or CatalogStore(self.device, self.spec.id, self.spec.level_sizes)
        config, levels = self.spec.decoder, len(self.spec.levels)
        max_tokens = min(self.spec.max_context_tokens, settings.max_batch_tokens)
        with room_for("the weights", "take a larger device, or engine.precision bf16 or fp8"):
            weights = load_weights(settings.model, config, self.device, self.dtype, placement.fp8)
        decoder = Decoder(config, weights, *rotary_tables(config, max_tokens + levels, self.device))
        with room_for("the beams", f"lower engine.max_batch_rows ({settings.max_batch_rows})"):
            self._beams = BeamMemory(config, levels - 1, settings.max_batch_rows, self.device, self.dtype)
        pages = context_pages(self.spec, settings, self.device, self.dtype)
        lower = "memory_fraction" if settings.context_pages is None else "context_pages"
        with room_for("the contexts", f"lower engine.{lower} ({getattr(settings, lower)})"):
            self._context = ContextKV(config, pages, self.device, self.dtype)
        self._pool = PagePool(pages)
        stages = Stages(
            decoder, LevelHead(weights.head, self.spec.levels), self.spec.levels, self._context, self._beams
        )
        self._executor = Executor(stages, self.device)
        self._searches = Lane(self.device, urgent=True)
        self._prefills = Lane(self.device) if settings.overlap else self._searches
        self._contexts = self._residency(pages)
        self._limits = BatchLimits.of(settings, pages)
        self._pipeline = Pipeline(
            self._executor,
            self._contexts,
            self._prefills,
            self._searches,
            self.device,
            self.spec.id,
            self._limits,
            settings.max_batch_tokens,
        )
        self._prompts = PromptBuilder(self.spec)
        self._max_tokens = min(max_tokens, pages * PAGE_TOKENS)
        self._admission = Admission(self.spec, settings, self._prompts, self._max_tokens)

    def _residency(self, pages: int) -> Residency:
        self._sessions = SessionTable(self._pool, int(self.settings.sessions * pages))
        copies, host = Lane(self.device), None
        if wanted := self.settings.sessions_host_bytes:
            with room_for("sessions on the host", f"lower engine.sessions_host_bytes ({wanted})"):
                host = HostSessions(self._context, wanted // (self._context.nbytes // pages), copies)
        return Residency(self._context, self._sessions, self._prefills, host, copies)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture the graphs, on CUDA. Before the first request; needs no catalog. Later nothing is captured."""
        if self.device.type != "cuda":
            return
        torch.cuda.synchronize(self.device)  # lanes do not wait for the stream that loaded the model
        if not self.settings.graphs:
            return
        if not fits_triton(self.spec.decoder.head_dim):
            log.warning(
                "attention has no kernel for heads of %d: no graphs, and slow batches", self.spec.decoder.head_dim
            )
            return
        hidden = torch.zeros(
            (self.settings.max_batch, self.spec.decoder.hidden_size), device=self.device, dtype=self.dtype
        )
        prefills = prefill_shapes(self.settings, self._max_tokens)
        self._executor.capture(
            prefills,
            search_shapes(self.settings, self._limits, len(self.spec.levels), self._max_tokens, len(prefills)),
            hidden,
            CudaCapture(self._prefills),
            CudaCapture(self._searches),
        )
        torch.cuda.synchronize(self.device)

    def validate(self, request: RecallRequest) -> None:
        """Cheap checks. Raises RequestError ``bad_request`` or ``too_large``."""
        self._admission.check(request)

    def check_ids(self, ids: ItemIds) -> None:
        """Raises RequestError ``bad_request`` for item ids of another kind than those of the active catalog."""
        self.catalogs.check_ids(ids)

    def estimate_tokens(self, request: RecallRequest) -> int:
        """Context tokens to be computed, at most. Of a user whose session is as long as the new context or shorter: as
        many as follow it, which is an estimate, for it holds only if the history begins like the one before.
        """
        most = self._admission.estimate_tokens(request)
        resident = 0 if request.session is None else self._contexts.tokens_of(request.session)
        if not resident or resident > most:
            return most
        suffix = 1 if request.tokens is not None else self._prompts.suffix_tokens(request.template)
        return min(most, most - resident + max(suffix, 1))

    @torch.inference_mode()
    def forget(self, user: str) -> None:
        """Erase the user's session: its pages are zeroed, those of requests under way when they are finished.

        Called from the thread that submits.
        """
        self._contexts.forget(user)

    def drop(self, lost: Callable[[str], bool]) -> None:
        """Let go of the sessions of all users that ``lost`` names, whose requests go elsewhere from now on.

        Called from the thread that submits.
        """
        self._contexts.drop(lost)

    def stats(self) -> dict[str, float]:
        """Use of the pools (pages, leases of requests, high-water marks, bytes), of the sessions and of the graphs."""
        return {
            "context_pages": self._pool.capacity,
            "context_pages_used": self._pool.used,
            "context_pages_high_water": self._pool.high_water,
            "context_leases": self._pool.open_leases - self._sessions.leases,
            "context_leases_leaked": self._pool.leaked,
            "context_bytes": self._context.nbytes,
            "beam_bytes": self._beams.nbytes,
            **self._contexts.stats(),
            **self._executor.stats(),
        }

    def recall(self, requests: Sequence[RecallRequest]) -> list[Answer]:
        """One answer per request, in order. Raises DeviceError if the device is lost."""
        return self.submit(requests).collect()

    @torch.inference_mode()
    def submit(self, requests: Sequence[RecallRequest], *, beside: bool = True) -> Running:
        """Start on the requests; ``collect`` of what is returned waits for the answers.

        Submitting the next requests before that keeps the device busy. Their prefill runs ``beside`` the searches under
        way: the device does more and these end later, hardly before it; or else after them. Raises DeviceError if the
        device is lost.
        """
        known: dict[int, Answer] = {}
        with ExitStack() as pins:
            prepared = list(self._prepare(requests, known, pins))
            running = Running(self._pipeline, len(requests), known, pins.pop_all())
        try:
            after = None if beside else self._pipeline.end
            for batch in plan(prepared, self._limits):
                running.launch(batch, after)
        except BaseException:
            running.finish()
            raise
        return running

    def _prepare(
        self, requests: Sequence[RecallRequest], known: dict[int, Answer], pins: ExitStack
    ) -> Iterable[PreparedRequest]:
        """Requests that can run; the others' errors go to ``known``."""
        pinned: dict[str | None, ResidentCatalog] = {}
        for place, request in enumerate(requests):
            try:
                self.validate(request)
                if request.catalog not in pinned:
                    pinned[request.catalog] = pins.enter_context(self.catalogs.pin(request.catalog))
                before = None if request.session is None else self._contexts.looked_up(request.session)
                yield prepare(place, request, pinned[request.catalog], self._prompts, before)
            except RequestError as error:
                known[place] = error.as_answer()
