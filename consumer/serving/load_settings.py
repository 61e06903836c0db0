"""Settings of what happens when not all can be answered in time."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Step = Literal["beam", "history", "last_reply"]
"""What may be given up, in this order; the word that a reply's ``degraded`` says it with."""


class LoadSettings(BaseModel):
    """Who waits, who is served with less, and who is turned away."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turn_away: bool = Field(
        True,
        description="answer requests rejected as soon as it is foreseen that they cannot be answered in time; off: "
        "begin whatever has not expired",
    )
    headroom: float = Field(
        0.1, ge=0, lt=1, description="share of a request's time that is kept free for what could not be foreseen"
    )
    degrade: tuple[Step, ...] = Field(
        (),
        description="what requests may lose before they are turned away, as a JSON list of beam, history, last_reply; "
        "always in this order; the reply's degraded says so",
    )
    narrow_to: float = Field(0.5, gt=0, lt=1, description="share of the beam's width that is left, never under top_k")
    shorten_to: float = Field(0.5, gt=0, lt=1, description="share of the history that is left: its newest part")
    last_reply_entries: int = Field(10_000, ge=1, description="last replies that are kept, if degrade names it")
    last_reply_bytes: int = Field(64 << 20, ge=0, description="the same in bytes of memory; the oldest go first")
    last_reply_age_s: float = Field(3_600.0, gt=0, description="how old a last reply may be")
    coalesce: bool = Field(
        False, description="waiting requests of one user that differ in history and top_k only become one run"
    )
    share_label: str | None = Field(
        None, min_length=1, description="the label whose value names the caller; none: the request topic does"
    )
    shares: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {},
        description="weights of callers where not all can be served, as a JSON object; another topic has 1, other "
        "values of the label have 1 together",
    )
