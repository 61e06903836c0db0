"""What the demo claims, as checks over the answers that came. Pure: each can fail."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from consumer.demo.movielens import MovieLens
from consumer.demo.ranking import IdArray, hit_rate_and_ndcg, most_popular
from consumer.demo.traffic import TOP_K, Answer


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the summary."""

    name: str
    passed: bool
    detail: str


def check_all_answered(answers: Sequence[Answer]) -> Check:
    """Every request got a full answer."""
    faults = Counter(answer.fault for answer in answers if answer.fault is not None)
    short = sum(answer.fault is None and len(answer.items) != TOP_K for answer in answers)
    detail = f"{len(answers)} requests, {faults.total()} failed, {short} with fewer than {TOP_K} films"
    if faults:
        detail += f" (first: {next(iter(faults))})"
    return Check("every request is answered", bool(answers) and not faults and not short, detail)


def check_recall(answers: Sequence[Answer], data: MovieLens, order: IdArray) -> Check:
    """The film that each user rated next is recalled more often than the popularity list ``order`` holds it."""
    targets = [int(data.history(answer.user)[-1]) for answer in answers]
    if not targets:
        return Check("recall beats popularity", False, "no answers")
    model, _ = hit_rate_and_ndcg([np.array(answer.items, np.int64) for answer in answers], targets, TOP_K)
    lists = [most_popular(order, data.history(answer.user)[:-1], TOP_K) for answer in answers]
    popular, _ = hit_rate_and_ndcg(lists, targets, TOP_K)
    detail = f"HR@10 {model:.3f}, by popularity {popular:.3f}; {len(targets)} users"
    return Check("recall beats popularity", model > popular, detail)


def check_live(answers: Sequence[Answer], data: MovieLens, live: Mapping[str, frozenset[int]]) -> Check:
    """No item that is not live in the version which the reply names, none of the user's own history, none twice."""
    dead = seen = twice = 0
    for answer in answers:
        items = set(answer.items)
        dead += len(items - live.get(answer.catalog or "", frozenset()))
        seen += len(items.intersection(data.history(answer.user)[:-1].tolist()))
        twice += len(answer.items) - len(items)
    total = sum(len(answer.items) for answer in answers)
    detail = f"{total} items: {dead} not live, {seen} of the own history, {twice} twice"
    return Check("only live and new films", bool(total) and not (dead or seen or twice), detail)


def check_withdrawn(
    before: Sequence[Answer], after: Sequence[Answer], version: str, withdrawn: Collection[int], least: int
) -> Check:
    """Withdrawn films, recalled ``before``, are in no reply of ``after`` that names ``version``; ``least`` of those."""
    name = "withdrawn films are gone under load"
    came = sum(bool(set(answer.items) & set(withdrawn)) for answer in before)
    new = [answer for answer in after if answer.catalog == version]
    bad = sum(bool(set(answer.items) & set(withdrawn)) for answer in new)
    detail = f"{len(withdrawn)} films were in {came} answers before, in {bad} of {len(new)} from the new version"
    return Check(name, came > 0 and len(new) >= least and bad == 0, detail)


def check_refused(refusal: str | None, after: Sequence[Answer], corrupt: str, serving: str, least: int) -> Check:
    """The corrupt version was refused with a reason, and every answer that came ``after`` is from ``serving``."""
    versions = Counter(answer.catalog or "none" for answer in after)
    passed = refusal is not None and corrupt not in versions and set(versions) == {serving} and len(after) >= least
    detail = f"{refusal or 'not refused'}; then {versions[serving]} of {len(after)} answers from {serving}"
    return Check("a corrupt version is refused, serving goes on", passed, detail)


def check_back(after: Sequence[Answer], version: str, withdrawn: Collection[int]) -> Check:
    """After the rollback to ``version`` every withdrawn film is recalled again."""
    back = {item for answer in after if answer.catalog == version for item in answer.items} & set(withdrawn)
    detail = f"{len(back)} of {len(withdrawn)} withdrawn films are recalled again"
    return Check("a rollback brings them back", bool(withdrawn) and len(back) == len(set(withdrawn)), detail)


def check_stopped(exit_code: int | None) -> Check:
    """The service drained and ended by itself when it was told to."""
    detail = "it had to be killed" if exit_code is None else f"exit code {exit_code}"
    return Check("the service stops cleanly", exit_code == 0, detail)
