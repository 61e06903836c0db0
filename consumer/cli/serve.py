"""``recallstream serve``: the service."""

from typing import Annotated, Literal

from pydantic import Field

from consumer.service.settings import ServiceSettings


class Serve(ServiceSettings):
    """Read requests from Kafka, recall items, write replies; keep the catalog current from Redis; until SIGTERM.

    Settings come from flags, then RECALLSTREAM_SECTION__FIELD, then the TOML file, then the defaults.
    """

    check: bool = Field(False, description="only check the settings and the model directory")
    gpus: Literal["all"] | Annotated[int, Field(ge=1)] | None = Field(
        None, description="all, or how many: one process per GPU under this one, in one consumer group"
    )

    def cli_cmd(self) -> None:
        from consumer.service.app import check, serve
        from consumer.service.logs import configure_logging

        configure_logging(self.log)
        if self.gpus is None:
            check(self) if self.check else serve(self)
            return

        from consumer.fleet.app import serve_fleet
        from consumer.fleet.gpus import choose

        check(self)
        gpus = choose(self.gpus, self.engine)
        if not self.check:
            settings = {name: getattr(self, name) for name in ServiceSettings.model_fields}
            serve_fleet(ServiceSettings.model_construct(**settings), gpus)
