"""What the demo shows."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from consumer.demo.checks import Check
from consumer.demo.movielens import MovieLens
from consumer.demo.traffic import Answer

_TAIL = 3
_SHOWN = 5
_SAMPLES = 4


class Screen:
    """Prints to one console; titles are shown as they are, never read as markup."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def title(self, text: str) -> None:
        self._console.rule(f"[bold]{text}", align="left")

    def line(self, text: str) -> None:
        self._console.print(Text(text))

    def command(self, text: str) -> None:
        """One to copy: it is not broken into lines."""
        self._console.print(Text(text), soft_wrap=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """A spinner while the block runs, then one line with the seconds it took."""
        started = time.perf_counter()
        with self._console.status(text):
            yield
        self._console.print(f"[green]✓[/] {text} [dim]{time.perf_counter() - started:.1f} s[/]")

    @contextmanager
    def progress(self, text: str, total: int) -> Iterator["HitProgress"]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TaskProgressColumn())
        with Progress(*columns, TimeElapsedColumn(), TextColumn("{task.fields[hits]}"), console=self._console) as bar:
            yield HitProgress(bar, text, total)

    def samples(self, answers: Sequence[Answer], data: MovieLens) -> None:
        """A few users: the end of the history, the titles that came back, the film they rated next marked."""
        table = Table("the user's last films", "recalled", show_lines=True, expand=True)
        for answer in _interesting(answers, data):
            history = data.history(answer.user)
            last, target = history[-_TAIL - 1 : -1], int(history[-1])
            titles = answer.reply.fields["title"] if answer.reply and answer.reply.fields else []
            recalled = Text()
            for item, film in list(zip(answer.items, titles, strict=True))[:_SHOWN]:
                recalled.append(*((f"{film}  ✓\n", "bold green") if item == target else (f"{film}\n",)))
            recalled.right_crop(1)
            table.add_row(Text("\n".join(data.title(int(item)) for item in last)), recalled)
        self._console.print(table)
        self._console.print("[bold green]✓[/] the film that this user rated next", highlight=False)

    def latency(self, answers: Sequence[Answer], seconds: float) -> None:
        times = np.array([answer.milliseconds for answer in answers if answer.fault is None])
        if len(times):
            p50, p95, p99 = np.percentile(times, (50, 95, 99))
            self.line(
                f"latency, send to reply: p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms; "
                f"{len(answers) / seconds:.0f} requests/s"
            )

    def summary(self, checks: Sequence[Check], seconds: float) -> None:
        table = Table("check", "", "what was seen", title="Summary", title_justify="left")
        for check in checks:
            mark = Text("held", "bold green") if check.passed else Text("FAILED", "bold red")
            table.add_row(Text(check.name), mark, Text(check.detail))
        self._console.print(table)
        failed = sum(not check.passed for check in checks)
        verdict = "[bold green]everything held[/]" if not failed else f"[bold red]{failed} of {len(checks)} failed[/]"
        self._console.print(f"{verdict} [dim]in {seconds:.0f} s[/]")


class HitProgress:
    """A progress bar that also shows HR@10 so far."""

    def __init__(self, bar: Progress, text: str, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task(text, total=total, hits="")
        self._hits = 0
        self._done = 0

    def advance(self, hit: bool) -> None:
        self._done += 1
        self._hits += hit
        self._bar.update(self._task, advance=1, hits=f"HR@10 {self._hits / self._done:.3f}")


def _interesting(answers: Sequence[Answer], data: MovieLens) -> list[Answer]:
    """As many hits as misses where there are some, in the order of the answers."""
    good = [answer for answer in answers if answer.items]
    hits = [answer for answer in good if int(data.history(answer.user)[-1]) in answer.items[:_SHOWN]]
    misses = [answer for answer in good if int(data.history(answer.user)[-1]) not in answer.items]
    return [*hits[: _SAMPLES // 2], *misses[: _SAMPLES - len(hits[: _SAMPLES // 2])]]
