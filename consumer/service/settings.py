"""Settings of the service: flags, environment, a TOML file, defaults, in this order; an unknown name is an error.

Every section's model lives beside the code that it configures; this file only puts them together.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from catalog_sync.settings import CatalogSettings
from consumer.histories.settings import HistorySettings
from consumer.serving.load_settings import LoadSettings
from consumer.serving.settings import BatchSettings
from consumer.stream.settings import KafkaSettings
from consumer.wire.settings import RecallDefaults, WireLimits
from engine.settings import EngineSettings

ENV_PREFIX = "RECALLSTREAM_"
ENV_CONFIG = "RECALLSTREAM_CONFIG"
ENV_DELIMITER = "__"

MASK = "**********"
_SECRET_NAME = re.compile(r"password|secret|token|\.pem$|jaas|oauthbearer\.config", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(\w+://[^/@:\s]*:)\S+@")


class HttpSettings(BaseModel):
    """Metrics, health, status: one small HTTP server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", min_length=1, description="address to bind; loopback unless told otherwise")
    port: int = Field(9464, ge=0, le=65535, description="port to bind; 0 takes a free one and logs it")
    stalled_after_s: float = Field(
        120.0, gt=0, description="seconds after which a loop, or a partition with lag, that stands still fails /healthz"
    )


class TracingSettings(BaseModel):
    """OpenTelemetry spans; needs the extra ``tracing``. OTEL_* variables set the sampler and everything else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(False, description="record spans; needs pip install 'recallstream[tracing]'")
    endpoint: str | None = Field(
        None, min_length=1, description="http://host:4318/v1/traces; none: OpenTelemetry's variables or its default"
    )
    service_name: str = Field("recallstream", min_length=1, description="service.name of the spans")


class LogSettings(BaseModel):
    """Logging to standard error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe level written")
    format: Literal["text", "json"] = Field("text", description="json: one object a line, for log collectors")


class LayeredSettings(BaseSettings):
    """Base of every command that takes sections of the service's settings.

    A subclass declares the sections that it needs under the service's names. The environment and the TOML file may hold
    all the service's settings: the others are checked for their names and left alone.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        nested_model_default_partial_update=True,
    )

    config: Path | None = Field(None, description=f"TOML file with settings; also {ENV_CONFIG}")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Environment(settings_cls), _TomlFile(settings_cls)

    @model_validator(mode="before")
    @classmethod
    def _enter_required_sections(cls, data: dict[str, Any]) -> dict[str, Any]:
        """So that what is missing is named as ``engine.model``, not as ``engine``."""
        required = (name for name, field in cls.model_fields.items() if field.is_required() and _section_of(field))
        return {name: {} for name in required} | data


class ServiceSettings(LayeredSettings):
    """All of the service's settings, one section a concern."""

    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="brokers, topics, consumer group")
    batch: BatchSettings = Field(default_factory=BatchSettings, description="micro-batches, admission, deadlines")
    load: LoadSettings = Field(
        default_factory=LoadSettings, description="what happens when not all can be answered in time"
    )
    recall: RecallDefaults = Field(default_factory=RecallDefaults, description="what a request gets that does not say")
    wire: WireLimits = Field(default_factory=WireLimits, description="what a record may hold")
    histories: HistorySettings = Field(
        default_factory=HistorySettings, description="users' histories that the service holds"
    )
    engine: EngineSettings = Field(description="the model and where it runs")
    catalog: CatalogSettings = Field(default_factory=CatalogSettings, description="where catalogs come from")
    http: HttpSettings = Field(default_factory=HttpSettings, description="metrics, health, status page")
    log: LogSettings = Field(default_factory=LogSettings, description="logging")
    tracing: TracingSettings = Field(default_factory=TracingSettings, description="OpenTelemetry spans")

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        bounds = [("batch.max_requests", self.batch.max_requests, "engine.max_batch", self.engine.max_batch)]
        for name, defaults in self.recall_defaults().items():
            bounds += [
                (f"{name}.width", defaults.width, "engine.max_width", self.engine.max_width),
                (f"{name}.top_k", defaults.top_k, "engine.max_top_k", self.engine.max_top_k),
            ]
        for name, value, bound_name, bound in bounds:
            if value > bound:
                raise ValueError(f"{name} ({value}) must not be above {bound_name} ({bound})")
        return self

    def recall_defaults(self) -> dict[str, RecallDefaults]:
        """All that a request may get which does not say, under the names of the settings that hold it."""
        own = {f"kafka.topics.{topic}": each.over(topic, self.recall) for topic, each in self.kafka.topics.items()}
        return {"recall": self.recall} | own


class _Environment(EnvSettingsSource):
    """``RECALLSTREAM_SECTION__FIELD``, for the sections of ``settings_cls``."""

    def __call__(self) -> dict[str, Any]:
        for variable in sorted(os.environ):
            name = variable.upper()
            if name.startswith(ENV_PREFIX) and name != ENV_CONFIG:
                path = tuple(name.removeprefix(ENV_PREFIX).lower().split(ENV_DELIMITER))
                _require_known(path, f"environment variable {variable}")
        try:
            values = super().__call__()
        except SettingsError as error:
            raise SettingsError(f"environment: {error.__cause__ or error}") from error
        return {name: value for name, value in values.items() if name in {"config", *_sections(self)}}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError as error:
            raise ValueError(f"{field_name}: must be JSON: {error}") from error


class _TomlFile(InitSettingsSource):
    """The file that ``config`` names, for the sections of ``settings_cls``."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls, {})

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")
        if path is None:
            return {}
        data = _read_toml(Path(path))
        for keys in _paths(data):
            _require_known(keys, str(path))
        return {name: value for name, value in data.items() if name in _sections(self)}


def settings_of(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every setting below ``model`` as (path, pydantic field), sections flattened."""
    for name, field in model.model_fields.items():
        if section := _section_of(field):
            yield from settings_of(section, (*prefix, name))
        else:
            yield (*prefix, name), field


def redacted(settings: BaseModel) -> dict[str, Any]:
    """The settings as JSON values. Secrets, passwords in URLs and secret-looking entries of maps are masked."""
    return {name: _mask(value, name) for name, value in settings.model_dump(mode="json").items()}


def changed(settings: BaseModel) -> dict[str, Any]:
    """What differs from the defaults, masked like ``redacted``; for a log line."""
    asked = settings.model_dump(mode="json", exclude_defaults=True)
    return {name: _mask(value, name) for name, value in asked.items() if value != {}}


def _mask(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _mask(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask(item, name) for item in value]
    if isinstance(value, str) and value:
        return MASK if _SECRET_NAME.search(name) else _URL_PASSWORD.sub(rf"\1{MASK}@", value)
    return value


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _sections(source: PydanticBaseSettingsSource) -> set[str]:
    service = ServiceSettings.model_fields
    own = source.settings_cls.model_fields
    return {name for name in own if name in service and own[name].annotation is service[name].annotation} - {"config"}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error


def _paths(data: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _paths(value, (*prefix, key))
        else:
            yield (*prefix, key)


def _require_known(path: tuple[str, ...], where: str) -> None:
    """Raise unless ``path`` is a setting, a section, or lies in a setting that is a map (librdkafka's options)."""
    known = {keys: field for keys, field in settings_of(ServiceSettings) if keys != ("config",)}
    if any(keys[: len(path)] == path for keys in known):
        return
    if any(path[: len(keys)] == keys and _is_map(field.annotation) for keys, field in known.items()):
        return
    dotted = ".".join(path)
    close = difflib.get_close_matches(dotted, [".".join(keys) for keys in known], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise SettingsError(f"{where}: {dotted} is not a setting{hint}")


def _is_map(annotation: Any) -> bool:
    return get_origin(annotation) in (dict, Mapping)
