"""``recallstream send``: one request from the shell."""

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from consumer.service.settings import LayeredSettings
from consumer.stream.settings import KafkaSettings
from engine.errors import RecallstreamError
from engine.request import Score

if TYPE_CHECKING:
    from rich.table import Table

    from consumer.client import RecallClient
    from consumer.wire.outgoing import RequestOptions
    from consumer.wire.reply import RecallReply


class Send(LayeredSettings):
    """Send one request to a running service and show the items that it recalls.

    Without --history and --tokens it recalls from the history that is held for --user. --event only adds to that, and
    --forget erases it; neither has a reply.

    Lists are separated by commas: --history 1193,661,914. Ids that are all numbers are sent as ints, others as strings.
    What is left out takes the service's default.
    """

    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="brokers and topics")
    bootstrap: str | None = Field(None, min_length=1, description="short for --kafka.bootstrap-servers")

    history: str | None = Field(None, description="the user's item ids, oldest first; empty for a user without events")
    append: str | None = Field(None, description="item ids that follow the history that is held for the user")
    event: str | None = Field(None, description="item ids to add to the history that is held, without a request")
    forget: bool = Field(False, description="have all erased that is held of the user")
    tokens: str | None = Field(None, description="token ids of a ready prompt, in the place of a history")
    user: str | None = Field(None, description="user id; also the record's key")
    top_k: int | None = Field(None, description="items wanted")
    width: int | None = Field(None, description="beam width at every level")
    widths: str | None = Field(None, description="beam widths, one per level")
    margin: float | None = Field(None, description="drop beams this far below the best; needs width or widths")
    min_width: int | None = Field(None, description="beams that the margin never drops")
    score: Score | None = Field(None, description="what a step's probability is normalised over")
    max_items_per_sid: int | None = Field(None, description="at most this many items of one SID")
    exclude: str | None = Field(None, description="item ids never to return")
    exclude_history: bool = Field(False, description="never return an item of the history")
    any_tag: str | None = Field(None, description="only items that have one of these tags")
    all_tags: str | None = Field(None, description="only items that have all of these tags")
    no_tag: str | None = Field(None, description="only items that have none of these tags")
    priority: int | None = Field(None, ge=0, le=9, description="higher goes first where there is no time for all")
    template: str | None = Field(None, description="prompt of the model to use")
    context: dict[str, str] = Field({}, description="values of the prompt's slots: --context hour=3")
    catalog: str | None = Field(None, description="catalog version to recall from")
    fields: str | None = Field(None, description="item fields to show: --fields title,genres")
    sids: bool = Field(False, description="show semantic ids too")
    timeout: float = Field(10.0, gt=0, description="seconds to wait for the reply")
    as_json: bool = Field(False, validation_alias=AliasChoices("json"), description="print the reply as JSON")

    def cli_cmd(self) -> None:
        import asyncio
        import logging
        import time

        from consumer.client import RecallClient, RecallError

        logging.getLogger("consumer.stream").addHandler(logging.NullHandler())  # trouble is said once, by the error

        async def exchange() -> tuple["RecallReply", float] | None:
            async with RecallClient(self._connection(), timeout=self.timeout) as client:
                if self.event is not None or self.forget:
                    await self._tell(client)
                    return None
                started = time.perf_counter()
                try:
                    reply = await client.recall(**self._options())
                except RecallError as error:
                    reply = error.reply
                return reply, (time.perf_counter() - started) * 1000

        try:
            answered = asyncio.run(exchange())
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            raise RecallstreamError(str(error)) from error
        if answered is None:
            return
        reply, round_trip_ms = answered
        self._show(reply, round_trip_ms)
        if reply.status != "ok":
            detail = f": {reply.error.code}: {reply.error.message}" if reply.error else ""
            raise RecallstreamError(f"{reply.status}{detail}")

    async def _tell(self, client: "RecallClient") -> None:
        if self.user is None:
            raise RecallstreamError("--event and --forget need --user")
        if self.event is not None:
            await client.send_event(self.user, _ids(self.event))
            self._confirm(f"event of user {self.user} written; it has no reply")
        if self.forget:
            await client.forget(self.user)
            self._confirm(f"forget of user {self.user} written; it has no reply")

    def _confirm(self, line: str) -> None:
        from rich.console import Console

        Console().print(line, markup=False, highlight=False, soft_wrap=True)

    def _connection(self) -> KafkaSettings:
        return self.kafka.model_copy(update={"bootstrap_servers": self.bootstrap} if self.bootstrap else {})

    def _options(self) -> "RequestOptions":
        beam = {
            "width": self.width,
            "widths": None if self.widths is None else _ids(self.widths),
            "margin": self.margin,
            "min_width": self.min_width,
        }
        tags = {"any": _words(self.any_tag), "all": _words(self.all_tags), "none": _words(self.no_tag)}
        options: dict[str, Any] = {
            "history": None if self.history is None else _ids(self.history),
            "append": None if self.append is None else _ids(self.append),
            "tokens": None if self.tokens is None else _ids(self.tokens),
            "exclude": None if self.exclude is None else _ids(self.exclude),
            "user_id": self.user,
            "beam": _given(beam),
            "filter": _given(tags),
            "context": {slot: _number_or_text(word) for slot, word in self.context.items()} or None,
            "return_fields": _words(self.fields),
            "return_sids": self.sids or None,
            "exclude_history": self.exclude_history or None,
            **{name: getattr(self, name) for name in ("top_k", "score", "max_items_per_sid", "priority")},
            **{name: getattr(self, name) for name in ("template", "catalog")},
        }
        return _given(options) or {}  # type: ignore[return-value]  # the keys are RequestOptions'

    def _show(self, reply: "RecallReply", round_trip_ms: float) -> None:
        from rich.console import Console

        from consumer.wire.reply import reply_as_json

        console = Console()
        if self.as_json:
            console.print(reply_as_json(reply).decode(), markup=False, highlight=False, soft_wrap=True)
        elif reply.status == "ok":
            console.print(_table(reply))
            console.print(_summary(reply, round_trip_ms), markup=False, highlight=False)


def _ids(text: str) -> list[int] | list[str]:
    words = _words(text) or []
    try:
        return [int(word) for word in words]
    except ValueError:
        return words


def _number_or_text(word: str) -> int | str:
    try:
        return int(word)
    except ValueError:
        return word


def _words(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [word.strip() for word in text.split(",")] if text.strip() else []


def _given(options: dict[str, Any]) -> dict[str, Any] | None:
    """Without what was left out; None if that was everything."""
    return {name: value for name, value in options.items() if value is not None} or None


def _table(reply: "RecallReply") -> "Table":
    from rich.table import Table
    from rich.text import Text

    fields = reply.fields or {}
    table = Table("rank", "item", "score", *(["sid"] if reply.sids is not None else []), *fields)
    for row, (item, score) in enumerate(zip(reply.items, reply.scores, strict=True)):
        sid = [] if reply.sids is None else [" ".join(map(str, reply.sids[row]))]
        cells = [str(row + 1), str(item), f"{score:.4f}", *sid, *(str(values[row]) for values in fields.values())]
        table.add_row(*map(Text, cells))  # Text: a title may hold rich's markup
    return table


def _summary(reply: "RecallReply", round_trip_ms: float) -> str:
    notes = {
        "fewer live items than asked": reply.exhausted,
        "history truncated": reply.truncated,
        f"{reply.unknown_items} unknown items skipped": reply.unknown_items,
        f"degraded: {', '.join(reply.degraded)}": reply.degraded,
    }
    timing = "  ".join(f"{name} {spent:.1f}" for name, spent in reply.timing_ms.items())
    return "\n".join(
        [
            f"catalog {reply.catalog}  model {reply.model}  beams {' '.join(map(str, reply.beam_widths))}  "
            f"context {reply.context_tokens} tokens, {reply.reused_tokens} reused",
            f"ms: {timing}  round trip {round_trip_ms:.1f}",
            *(note for note, holds in notes.items() if holds),
        ]
    )
