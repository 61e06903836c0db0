"""``recallstream serve``: the service."""

from pydantic import Field

from consumer.service.settings import ServiceSettings


class Serve(ServiceSettings):
    """Read requests from Kafka, recall items, write replies; keep the catalog current from Redis; until SIGTERM.

    Settings come from flags, then RECALLSTREAM_SECTION__FIELD, then the TOML file, then the defaults.
    """

    check: bool = Field(False, description="only check the settings and the model directory")

    def cli_cmd(self) -> None:
        from consumer.service.app import check, serve
        from consumer.service.logs import configure_logging

        configure_logging(self.log)
        if self.check:
            check(self)
        else:
            serve(self)
