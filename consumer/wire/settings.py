"""Settings of the wire: how much a record may hold, and what a request that does not say gets."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine.request import Score


class WireLimits(BaseModel):
    """Hard bounds of one record. Whatever is over one is refused before it is built; the reply says ``too_large``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_value_bytes: int = Field(1_048_576, ge=64, description="bytes of a request's value")
    max_history: int = Field(20_000, ge=1, description="items of a history on the wire; the model's own cap truncates")
    max_tokens: int = Field(20_000, ge=1, description="token ids of a ready prompt")
    max_exclude: int = Field(20_000, ge=1, description="item ids to exclude")
    max_tags: int = Field(256, ge=1, description="tag names in each of a filter's any, all and none")
    max_context: int = Field(64, ge=1, description="entries of context")
    max_fields: int = Field(64, ge=1, description="names in return_fields")
    max_string: int = Field(256, ge=1, description="characters of an item id, tag, name, label or context value")


class RecallDefaults(BaseModel):
    """What a request gets for the fields that it leaves out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    template: str = Field("default", min_length=1, description="named prompt of the model")
    top_k: int = Field(100, ge=1, description="items wanted")
    width: int = Field(256, ge=1, description="beam width at every level; a larger top_k raises it")
    margin: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="score margin of the beam; none: no margin"
    )
    min_width: int = Field(1, ge=1, description="beams that the margin never drops")
    score: Score = Field("level", description="what a step's probability is normalised over")
    deadline_ms: int = Field(2_000, ge=1, description="time to answer, counted from the record's timestamp")
    max_deadline_ms: int = Field(60_000, ge=1, description="a deadline further ahead than this is clamped")

    @model_validator(mode="after")
    def _default_within_maximum(self) -> Self:
        if self.deadline_ms > self.max_deadline_ms:
            raise ValueError("deadline_ms must not be above max_deadline_ms")
        return self


class TopicDefaults(BaseModel):
    """What the requests of one topic get in the place of ``RecallDefaults`` and of the default reply topic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reply_topic: str | None = Field(None, min_length=1)
    template: str | None = Field(None, min_length=1)
    top_k: int | None = Field(None, ge=1)
    width: int | None = Field(None, ge=1)
    margin: float | None = Field(None, ge=0, allow_inf_nan=False)
    min_width: int | None = Field(None, ge=1)
    score: Score | None = None
    deadline_ms: int | None = Field(None, ge=1)
    max_deadline_ms: int | None = Field(None, ge=1)

    def over(self, topic: str, defaults: RecallDefaults) -> RecallDefaults:
        """``defaults`` with what is given here in their place. Raises ValueError if the two contradict each other."""
        given = self.model_dump(exclude_none=True, exclude={"reply_topic"})
        try:
            return RecallDefaults.model_validate(defaults.model_dump() | given)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"kafka.topics.{topic}: {reason}") from None
