"""``recallstream recall``: the engine over a file, without Kafka and Redis."""

from pathlib import Path

from pydantic import Field

from consumer.service.settings import LayeredSettings, LogSettings
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.settings import EngineSettings


class Recall(LayeredSettings):
    """Recall items for every row of a Parquet file; the answers are those of the service.

    The input has a column history (lists of item ids, oldest first) and, if wanted, user_id and the protocol's other
    request fields: top_k, beam, score, exclude, filter, template, context, tokens and so on. The output has one row a
    row: user_id, items, scores, and error where a row could not be answered.
    """

    input: Path = Field(description="Parquet file of requests")
    output: Path = Field(description="Parquet file to write")
    catalog: Path = Field(description="catalog file, as recallstream catalog build writes it")
    return_sids: bool = Field(False, description="also write the items' SIDs")
    return_fields: list[str] = Field([], description="also write these fields of the catalog's items")
    engine: EngineSettings = Field(description="the model and where it runs")
    recall: RecallDefaults = Field(default_factory=RecallDefaults, description="what a row gets that does not say")
    wire: WireLimits = Field(default_factory=WireLimits, description="what a row may hold")
    log: LogSettings = Field(default_factory=lambda: LogSettings(level="warning"), description="logging")

    def cli_cmd(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from catalog_sync import blob
        from consumer.offline import OfflineRecall, answer_schema, open_input, recall_file
        from consumer.service.logs import configure_logging
        from engine.recall_engine import RecallEngine

        configure_logging(self.log)
        with open_input(self.input) as table:
            rows, columns = table.metadata.num_rows, table.schema_arrow
        catalog = blob.decode(blob.read_file(self.catalog))
        schema = answer_schema(columns, catalog, self.return_sids, self.return_fields)
        engine = RecallEngine(self.engine)
        engine.catalogs.stage(catalog)
        engine.catalogs.activate(catalog.version)
        recall = OfflineRecall(
            engine,
            len(engine.spec.levels),
            self.engine.max_batch,
            self.recall,
            self.wire,
            self.return_sids,
            self.return_fields,
        )
        console = Console(stderr=True)
        progress = Progress(
            TextColumn("recalling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
        )
        with progress:
            task = progress.add_task("recall", total=rows)
            total, failed = recall_file(
                recall, self.input, self.output, schema, lambda done: progress.advance(task, done)
            )
        console.print(f"{total} rows answered into {self.output}, {failed} of them with an error", soft_wrap=True)
