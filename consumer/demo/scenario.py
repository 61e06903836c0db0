"""The demo's story once all runs: real histories, then catalog versions that change under load."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from consumer.demo.catalog_owner import CatalogOwner
from consumer.demo.checks import (
    Check,
    check_all_answered,
    check_back,
    check_live,
    check_recall,
    check_refused,
    check_withdrawn,
)
from consumer.demo.films import Release, film_release
from consumer.demo.movielens import MovieLens
from consumer.demo.ranking import popularity_order
from consumer.demo.screen import Screen
from consumer.demo.traffic import Answer, Load, Sender

CONCURRENCY = 8
WITHDRAWN = 10
ENOUGH = 60
"""Answers of a version under load before it is judged."""
PATIENCE_S = 60.0


@dataclass(slots=True)
class Scenario:
    """Plays the parts in order; each adds to ``checks``. ``base`` is the version that serves at the start."""

    data: MovieLens
    model: Path
    base: Release
    users: Sequence[int]
    owner: CatalogOwner
    send: Sender
    screen: Screen
    checks: list[Check] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    async def play(self) -> list[Check]:
        first = await self._recall()
        popular = Counter(item for answer in first for item in answer.items)
        withdrawn = [item for item, _ in popular.most_common(WITHDRAWN)]
        fewer = film_release(self.data, self.model, "without the most recalled films", withdrawn)
        corrupt = film_release(self.data, self.model, "damaged on the way")
        affected = [answer.user for answer in first if set(answer.items) & set(withdrawn)] or list(self.users)

        self.screen.title("A live catalog, under load")
        self.screen.line(f"withdrawn: {', '.join(self.data.title(item) for item in withdrawn)}")
        async with Load(self.send, affected, CONCURRENCY) as load:
            await self._withdraw(load, first, fewer, withdrawn)
            await self._damage(load, corrupt, fewer)
            await self._roll_back(load, withdrawn)
        self.answers += load.answers

        live = {release.version: release.live for release in (self.base, fewer, corrupt)}
        everything = [check_all_answered(self.answers), check_live(self.answers, self.data, live)]
        return [*everything, *self.checks]

    async def _recall(self) -> list[Answer]:
        """Every user once."""
        self.screen.title("Real histories through Kafka")
        answers: list[Answer] = []
        waiting = iter(self.users)
        with self.screen.progress("recalling", len(self.users)) as progress:

            async def work() -> None:
                for user in waiting:
                    answer = await self.send(user)
                    answers.append(answer)
                    progress.advance(int(self.data.history(user)[-1]) in answer.items)

            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY):
                    group.create_task(work())
            seconds = time.perf_counter() - started
        self.screen.samples(answers, self.data)
        self.screen.latency(answers, seconds)
        order = popularity_order(self.data.histories(drop_last=1), self.data.items)
        self.checks.append(check_recall(answers, self.data, order))
        self.screen.line(self.checks[-1].detail)
        self.answers += answers
        return answers

    async def _withdraw(self, load: Load, before: Sequence[Answer], release: Release, withdrawn: list[int]) -> None:
        with self.screen.step(
            f"a version without {len(withdrawn)} of the most recalled films goes live, {ENOUGH} answers from it"
        ):
            await asyncio.to_thread(self.owner.publish, release)
            await load.until(lambda answers: _count(answers, release.version) >= ENOUGH, PATIENCE_S)
        self.checks.append(check_withdrawn(before, load.answers, release.version, withdrawn, ENOUGH))

    async def _damage(self, load: Load, corrupt: Release, serving: Release) -> None:
        with self.screen.step("a version that is damaged on the way is announced and refused"):
            await asyncio.to_thread(self.owner.publish_damaged, corrupt)
            ack = await self.owner.acknowledged(lambda ack: ack.state == "refused", PATIENCE_S)
            seen = len(load.answers)
            await load.until(lambda answers: len(answers) - seen >= ENOUGH, PATIENCE_S)
        after = load.answers[seen:]
        refusal = ack.error if ack else None
        self.checks.append(check_refused(refusal, after, corrupt.version, serving.version, ENOUGH))

    async def _roll_back(self, load: Load, withdrawn: list[int]) -> None:
        """Once away from the damaged version, once more away from the one without the films."""
        with self.screen.step("two rollbacks: the withdrawn films are live again"):
            for _ in range(2):
                await asyncio.to_thread(self.owner.rollback, self.base.manifest.model)
            seen = len(load.answers)
            await load.until(
                lambda answers: check_back(answers[seen:], self.base.version, withdrawn).passed, PATIENCE_S
            )
        self.checks.append(check_back(load.answers[seen:], self.base.version, withdrawn))


def _count(answers: Sequence[Answer], version: str) -> int:
    return sum(answer.catalog == version for answer in answers)
