"""What a model directory says about itself: ``sid.json`` beside the decoder's ``config.json``."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine.errors import ModelError
from engine.model.decoder_config import DecoderConfig

TokenId = Annotated[int, Field(ge=0)]


class LevelSpec(BaseModel):
    """One SID level: code ``c`` is the token ``token_base + c``. Levels may share a ``token_base``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    token_base: TokenId
    size: int = Field(ge=1, le=2**20)


class Prompt(BaseModel):
    """``prefix``, for each item ``before_item`` + its code tokens + ``after_item``, then ``suffix``.

    A string in ``prefix`` or ``suffix`` is a slot: the request's ``context`` supplies its token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    prefix: tuple[TokenId | str, ...] = ()
    before_item: tuple[TokenId, ...] = ()
    after_item: tuple[TokenId, ...] = ()
    suffix: tuple[TokenId | str, ...] = ()

    @property
    def slots(self) -> frozenset[str]:
        """Names that a request's ``context`` must give."""
        return frozenset(part for part in self.prefix + self.suffix if isinstance(part, str))

    @property
    def fixed_beginning(self) -> tuple[TokenId, ...]:
        """The prefix up to its first slot: every prompt of the template begins so."""
        return tuple(takewhile(lambda part: isinstance(part, int), self.prefix))  # type: ignore[arg-type]  # ints alone

    def fixed_tokens(self) -> Iterator[int]:
        for part in self.prefix + self.before_item + self.after_item + self.suffix:
            if isinstance(part, int):
                yield part


class SidSpec(BaseModel):
    """The contents of ``sid.json``. ``slots``: for a slot, the tokens that stand for string values."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str = Field(min_length=1, max_length=128)
    levels: tuple[LevelSpec, ...] = Field(min_length=1, max_length=8)
    prompts: dict[str, Prompt] = Field(min_length=1)
    max_history_items: int = Field(ge=1)
    history_drop: int = Field(ge=1)
    slots: dict[str, dict[str, TokenId]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _drop_within_cap(self) -> Self:
        if self.history_drop > self.max_history_items:
            raise ValueError("history_drop is larger than max_history_items")
        return self


class ModelSpec(SidSpec):
    """``sid.json`` together with the decoder that it belongs to."""

    decoder: DecoderConfig

    @classmethod
    def load(cls, model_dir: Path) -> Self:
        """Read both files, without weights. Raises ``ModelError`` naming the file and what is wrong with it."""
        path = Path(model_dir) / "sid.json"
        try:
            sid = SidSpec.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ModelError(f"{path}: {place + ': ' if place else ''}{first['msg']}") from error
        spec = cls(**dict(sid), decoder=DecoderConfig.load(Path(model_dir)))
        spec._check_tokens(path)
        spec._check_positions(path)
        return spec

    @property
    def level_sizes(self) -> tuple[int, ...]:
        return tuple(level.size for level in self.levels)

    def prompt_tokens(self, prompt: Prompt, items: int) -> int:
        """Length of ``prompt`` around ``items`` known items."""
        per_item = len(prompt.before_item) + len(self.levels) + len(prompt.after_item)
        return len(prompt.prefix) + items * per_item + len(prompt.suffix)

    @property
    def max_context_tokens(self) -> int:
        """Longest context whose decoded tokens still have positions."""
        return self.decoder.max_positions - (len(self.levels) - 1)

    def _check_tokens(self, path: Path) -> None:
        def check(token: int, where: str) -> None:
            if token >= self.decoder.vocab_size:
                raise ModelError(
                    f"{path}: {where}: token {token} is outside the vocabulary of {self.decoder.vocab_size}"
                )

        for number, level in enumerate(self.levels):
            check(level.token_base + level.size - 1, f"levels.{number}")
        for name, prompt in self.prompts.items():
            for token in prompt.fixed_tokens():
                check(token, f"prompts.{name}")
        for name, values in self.slots.items():
            for token in values.values():
                check(token, f"slots.{name}")

    def _check_positions(self, path: Path) -> None:
        for name, prompt in self.prompts.items():
            needed = self.prompt_tokens(prompt, self.max_history_items)
            if needed > self.max_context_tokens:
                raise ModelError(
                    f"{path}: prompts.{name} with max_history_items = {self.max_history_items} takes {needed} tokens; "
                    f"the model has positions for {self.max_context_tokens}"
                )
