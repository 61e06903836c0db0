"""Writes the pages of this folder that come from the code: ``python -m docs.generate``."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from consumer.fleet.status import RESTARTS, RESTARTS_HELP
from consumer.service.metrics import Metrics
from consumer.service.settings import ENV_DELIMITER, ENV_PREFIX, ServiceSettings, settings_of
from docs.performance import performance_page

DOCS = Path(__file__).parent
NOTE = "<!-- Written by `make docs`; do not edit. -->"

SETTINGS_HEAD = f"""# Settings

{NOTE}

A setting comes from the first of these that gives it:

1. a flag: `--http.port 9000`
2. the environment: `RECALLSTREAM_HTTP__PORT=9000` (section and field, two underscores between them)
3. the TOML file that `--config` or `RECALLSTREAM_CONFIG` names: `port = 9000` under `[http]`
4. its default

A name that is no setting is an error in each of them, and so is any other variable that begins with `{ENV_PREFIX}`.
Lists and maps are JSON in flags and in the environment. `recallstream serve --check` validates everything and stops;
what differs from the defaults is logged at start, everything is on the status page, secrets masked. `--gpus` is a flag
of its own ([several GPUs](operations.md#several-gpus-of-one-machine)).
[`deploy/recallstream.toml`](../deploy/recallstream.toml) is a file to start from."""

METRICS_HEAD = f"""# Metrics

{NOTE}

On `/metrics`, in the Prometheus format. Label values come from short fixed lists and the partitions assigned, so the
number of series does not grow with traffic. [`deploy/grafana.json`](../deploy/grafana.json) is a dashboard over them,
[`deploy/alerts.yaml`](../deploy/alerts.yaml) holds alert rules.
With `serve --gpus` each series has one more label, `gpu`,
and there is the counter `{RESTARTS}_total`: {RESTARTS_HELP}

| metric | type | labels | meaning |
|---|---|---|---|"""


def settings_page() -> str:
    return "\n".join([SETTINGS_HEAD, *_sections()]) + "\n"


def metrics_page() -> str:
    rows = (
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in Metrics().definitions
    )
    return "\n".join([METRICS_HEAD, *rows]) + "\n"


PAGES = {"settings.md": settings_page, "metrics.md": metrics_page, "performance.md": performance_page}


def _sections() -> Iterator[str]:
    section = ""
    for path, field in settings_of(ServiceSettings):
        if path == ("config",):
            continue
        if path[0] != section:
            section = path[0]
            yield f"\n## {section}\n\n{_sentence(ServiceSettings.model_fields[section].description or '')}\n"
            yield "| flag | environment | default | meaning |\n|---|---|---|---|"
        variable = ENV_PREFIX + ENV_DELIMITER.join(path).upper()
        yield f"| `--{'.'.join(path)}` | `{variable}` | {_default(field)} | {field.description} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined:
        return "derived"
    value = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
    return "none" if value is None or value == () else f"`{value}`"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
