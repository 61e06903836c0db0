"""Batches on the device: launched in order, a few at a time, finished in order."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, zip_longest

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import DeviceError, RequestError
from engine.request import RecallResult
from engine.runtime.answers import Answer, answers_of
from engine.runtime.executor import Executor
from engine.runtime.lane import Lane, Mark
from engine.runtime.layout import host_memory
from engine.runtime.plan import BatchLimits
from engine.runtime.prepared import PreparedRequest
from engine.runtime.residency import Residency
from engine.runtime.search_groups import search_groups, width_order
from engine.runtime.search_input import SearchShape
from engine.state.sessions import Context

DEPTH = 2
"""Batches on the device at a time: while one runs, the host prepares the next."""


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """A search of some requests of a batch; ``output``: on the host, valid after the batch's end."""

    group: slice
    shape: SearchShape
    output: Tensor


@dataclass(slots=True, eq=False)
class Flight:
    """A batch on the device. Once it is finished there are ``answers`` or an ``error``.

    ``marks``: its begin, the end of the prefill, its end. ``hidden`` is kept alive until another lane has read it.
    """

    batch: Sequence[PreparedRequest]
    contexts: Sequence[Context]
    marks: tuple[Mark, Mark, Mark]
    searches: Sequence[Search]
    hidden: Tensor
    answers: list[Answer] | None = None
    error: Exception | None = None

    @property
    def reached(self) -> bool:
        """Its work on the device is over: finishing it does not wait, and tells if the device was lost."""
        try:
            return self.marks[-1].reached
        except torch.AcceleratorError:
            return True

    def result(self) -> list[Answer]:
        """One answer per request of a finished batch. Raises what is a bug."""
        if self.answers is None:
            raise self.error or RuntimeError("the batch is not finished")
        return self.answers


class Pipeline:
    """``prefills`` and ``searches``: the lanes of the two stages, which may be the same one; ``limits``: the sizes that
    searches are rounded up to; ``max_tokens``: those that one batch may have computed.

    Used from one thread.
    """

    def __init__(
        self,
        executor: Executor,
        contexts: Residency,
        prefills: Lane,
        searches: Lane,
        device: torch.device,
        model: str,
        limits: BatchLimits,
        max_tokens: int,
    ) -> None:
        self._executor, self._contexts = executor, contexts
        self._prefills, self._searches = prefills, searches
        self._device, self._model = device, model
        self._limits, self._max_tokens = limits, max_tokens
        self._flights: deque[Flight] = deque()
        self._hidden_read: Mark | None = None

    @property
    def end(self) -> Mark | None:
        """Reached when all is done that was launched; none where nothing is under way."""
        return self._flights[-1].marks[-1] if self._flights else None

    def launch(self, batch: Sequence[PreparedRequest], after: Mark | None = None) -> Iterator[Flight]:
        """Start requests in order, all at once or, where they have too many new tokens, one part after the other; on
        the device not before ``after`` is reached.

        Waits for older ones where there are too many or their pages are needed. Pages that are only kept for a later
        request are taken before anybody waits for them. Raises RequestError ``overloaded`` if the device is out of
        memory, DeviceError if it is lost.
        """
        self._wait_for_place()
        waiting = [(item, self._open(item)) for item in batch]
        try:
            while waiting:
                with _device_errors(self._device):
                    flight = self._start_some(waiting, after)
                self._flights.append(flight)
                del waiting[: len(flight.batch)]
                yield flight
        finally:
            for _, context in waiting:
                self._contexts.close(context, answered=False)

    def finish(self, flight: Flight) -> None:
        """Wait for a batch and for all before it. Raises DeviceError."""
        while flight in self._flights:
            self._finish_oldest()

    def _start_some(self, waiting: Sequence[tuple[PreparedRequest, Context]], after: Mark | None) -> Flight:
        """As many of the first as may run at once, narrow beams first."""
        tokens = accumulate(len(context.tokens) - context.reused for _, context in waiting)
        count = max(1, sum(upto <= self._max_tokens for upto in tokens))
        order = width_order([item.widths for item, _ in waiting[:count]])
        batch, contexts = zip(*(waiting[place] for place in order), strict=True)
        self._wait_for_place()
        self._contexts.fill(contexts, self._finish_another)
        return self._start(batch, contexts, after)

    def _open(self, item: PreparedRequest) -> Context:
        prompt = item.prompt
        return self._contexts.open(item.request.session, prompt.tokens, prompt.common, prompt.looked_up)

    def _finish_another(self) -> bool:
        if self._flights:
            self._finish_oldest()
            return True
        return False

    def _wait_for_place(self) -> None:
        while len(self._flights) >= DEPTH:
            self._finish_oldest()

    def _start(self, batch: Sequence[PreparedRequest], contexts: Sequence[Context], after: Mark | None) -> Flight:
        pages = [context.pages for context in contexts]
        with self._prefills.active():
            if self._hidden_read is not None:
                self._prefills.after(self._hidden_read)
            if after is not None:
                self._prefills.after(after)
            begin = self._prefills.mark()
            hidden = self._executor.prefill(
                [context.tokens for context in contexts], [context.reused for context in contexts], pages
            )
            prefilled = self._prefills.mark()

        rows: list[Tensor] = []

        def take_hidden(group: slice, into: Tensor | None) -> Tensor:
            if not rows:  # all at once: the next prefill waits for this, and not for the searches
                self._searches.after(prefilled)
                rows.append(hidden[: len(batch)].clone())
                self._hidden_read = self._searches.mark()
            taken = rows[0][group]
            return taken if into is None else into[: len(taken)].copy_(taken)

        groups = search_groups([item.widths for item in batch], self._limits.request_sizes, self._limits.widths)
        with self._searches.active():
            searches = [self._search(group, batch[group], pages[group], take_hidden) for group in groups]
            marks = begin, prefilled, self._searches.mark()
        return Flight(batch, contexts, marks, searches, hidden)

    def _search(
        self,
        group: slice,
        batch: Sequence[PreparedRequest],
        pages: Sequence[NDArray[np.int32]],
        take_hidden: Callable[[slice, Tensor | None], Tensor],
    ) -> Search:
        shape, output = self._executor.search(batch, pages, partial(take_hidden, group))
        host = host_memory(output.nbytes, self._device)
        host.copy_(output, non_blocking=True)
        return Search(group, shape, host)

    def _finish_oldest(self) -> None:
        flight = self._flights.popleft()
        try:
            with _device_errors(self._device):
                flight.answers = self._read(flight)
        except DeviceError:
            raise
        except Exception as error:  # belongs to whoever asks for this batch, who need not be the caller
            flight.error = error
            for context in flight.contexts:
                if context.erase:
                    self._contexts.clear(context)
        finally:
            for context, answer in zip_longest(flight.contexts, flight.answers or ()):
                self._contexts.close(context, answered=isinstance(answer, RecallResult))

    def _read(self, flight: Flight) -> list[Answer]:
        begin, prefilled, end = flight.marks
        end.wait()
        prefill_ms, decode_ms = prefilled.milliseconds_since(begin), end.milliseconds_since(prefilled)
        found = [search.shape.outputs().arrays(search.output) for search in flight.searches]
        for search, each in zip(flight.searches, found, strict=True):
            for context, width in zip(flight.contexts[search.group], each["widths"][:, -1], strict=False):
                if width < 0 or context.erase:
                    self._contexts.clear(context)
        reused = [context.reused for context in flight.contexts]
        return [
            answer
            for search, each in zip(flight.searches, found, strict=True)
            for answer in answers_of(
                flight.batch[search.group], each, self._model, reused[search.group], prefill_ms, decode_ms
            )
        ]


@contextmanager
def _device_errors(device: torch.device) -> Iterator[None]:
    """What a lost device raises becomes DeviceError, lack of memory RequestError ``overloaded``."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RequestError("overloaded", f"out of device memory: {error}") from error
    except torch.AcceleratorError as error:
        raise DeviceError(str(error)) from error
    except RuntimeError as error:
        _raise_if_lost(device, error)
        raise


def _raise_if_lost(device: torch.device, error: RuntimeError) -> None:
    """Libraries and kernel launches report a lost device in words of their own: ask the device itself."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            raise DeviceError(str(error)) from error
