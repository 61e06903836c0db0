"""Settings: four sources, their precedence, unknown names, redaction."""

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic_settings import CliApp, SettingsError

from consumer.cli.commands import describe
from consumer.service.settings import HttpSettings, LayeredSettings, LogSettings, ServiceSettings, changed, redacted
from engine.settings import EngineSettings

MODEL = "--engine.model=models/a"


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECALLSTREAM_CONFIG", raising=False)


def load(*flags: str) -> ServiceSettings:
    return CliApp.run(ServiceSettings, cli_args=list(flags), cli_exit_on_error=False)


def toml(text: str) -> str:
    path = Path("settings.toml")
    path.write_text(text)
    return f"--config={path}"


def test_defaults_need_only_a_model() -> None:
    settings = load(MODEL)
    assert settings.http == HttpSettings()
    assert settings.engine == EngineSettings(model=Path("models/a"))


def test_each_source_overrides_the_one_below(monkeypatch: pytest.MonkeyPatch) -> None:
    config = toml('[engine]\nmodel = "m"\nmax_batch = 32\nmax_width = 520\nmax_top_k = 200\n')
    monkeypatch.setenv("RECALLSTREAM_ENGINE__MAX_WIDTH", "530")
    monkeypatch.setenv("RECALLSTREAM_ENGINE__MAX_TOP_K", "300")
    engine = load(config, "--engine.max_top_k=400").engine
    assert engine.context_pages == EngineSettings(model=Path("m")).context_pages
    assert (engine.max_batch, engine.max_width, engine.max_top_k) == (32, 530, 400)


def test_the_file_may_be_named_by_the_environment_and_the_flag_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other.toml").write_text("[http]\nport = 1\n")
    monkeypatch.setenv("RECALLSTREAM_CONFIG", "other.toml")
    assert load(MODEL).http.port == 1
    assert load(MODEL, toml("[http]\nport = 2\n")).http.port == 2


def test_maps_pass_through_and_merge_over_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALLSTREAM_KAFKA__CLIENT_OPTIONS", '{"client.id": "b"}')
    options = load(MODEL, toml('[kafka.client_options]\n"client.id" = "a"\n"client.rack" = "r"\n')).kafka.client_options
    assert options == {"client.id": "b", "client.rack": "r"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[http]\nprot = 1\n", r"settings.toml: http.prot is not a setting; did you mean http.port\?"),
        ("[htp]\n", "settings.toml: htp is not a setting"),
        ("port = 1\n", "settings.toml: port is not a setting"),
        ('config = "x.toml"\n', "settings.toml: config is not a setting"),
        ("[http\n", "settings.toml: not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(MODEL, toml(text))


def test_a_missing_file_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml: No such file"):
        load(MODEL, "--config=absent.toml")


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("RECALLSTREAM_HTTP__PROT", "http.prot"),
        ("RECALLSTREAM_HTTP_PORT", "http_port"),
        ("RECALLSTREAM_CHECK", "check"),
        ("RECALLSTREAM_HTTP__PORT__X", "http.port.x"),
        ("recallstream_typo", "typo"),
    ],
)
def test_a_variable_that_matches_nothing_is_refused_by_name(
    variable: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(SettingsError, match=f"environment variable {variable}: {setting} is not a setting"):
        load(MODEL)


def test_an_unknown_flag_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"--http\.prot"):
        load(MODEL, "--http.prot=1")


@pytest.mark.parametrize("variable", ["KAFKA", "KAFKA__REPLY_TOPICS_ALLOWED"])
def test_what_is_no_json_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(f"RECALLSTREAM_{variable}", "a,b")
    with pytest.raises(SettingsError, match=f"environment: {variable.rpartition('__')[2].lower()}: must be JSON"):
        load(MODEL)


@pytest.mark.parametrize("source", ["toml", "environment", "flag"])
def test_a_bad_value_is_refused_by_field_name(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [MODEL]
    if source == "toml":
        flags.append(toml("[http]\nport = 70000\n"))
    elif source == "environment":
        monkeypatch.setenv("RECALLSTREAM_HTTP__PORT", "70000")
    else:
        flags.append("--http.port=70000")
    with pytest.raises(ValidationError) as refusal:
        load(*flags)
    assert describe(refusal.value).startswith("http.port: ")


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ValidationError) as refusal:
        load()
    assert describe(refusal.value) == "engine.model: Field required"


def test_sections_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(ValidationError) as refusal:
        load(MODEL, "--engine.max_batch=4", "--batch.max_requests=5")
    assert describe(refusal.value) == "batch.max_requests (5) must not be above engine.max_batch (4)"


SEARCH = '[kafka.topics."recall.search"]\nwidth = 64\ntemplate = "search"\n'


def test_topics_have_defaults_over_those_of_all() -> None:
    settings = load(MODEL, toml(f"[recall]\ntop_k = 7\n{SEARCH}"))
    defaults = settings.recall_defaults()
    own = defaults["kafka.topics.recall.search"]
    assert (own.width, own.template, own.top_k) == (64, "search", 7)
    assert (defaults["recall"].width, defaults["recall"].template) == (256, "default")
    flag = '--kafka.topics={"recall.search": {"width": 64, "template": "search"}}'
    assert load(MODEL, flag).kafka.topics == settings.kafka.topics


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("width = 5000", "kafka.topics.recall.search.width (5000) must not be above engine.max_width (1024)"),
        ("deadline_ms = 70000", "kafka.topics.recall.search: deadline_ms must not be above max_deadline_ms"),
        ("widht = 5", "kafka.topics.recall.search.widht: Extra inputs are not permitted"),
    ],
)
def test_defaults_of_a_topic_that_cannot_be_are_refused_by_name(line: str, reason: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        load(MODEL, toml(f'[kafka.topics."recall.search"]\n{line}\n'))
    assert describe(refusal.value) == reason


def test_secrets_show_in_no_representation(caplog: pytest.LogCaptureFixture) -> None:
    settings = load(MODEL, "--kafka.sasl_password=hunter2")
    logging.getLogger("test").warning("%s %r %s", settings, settings, redacted(settings))
    assert "hunter2" not in caplog.text + settings.model_dump_json() + str(redacted(settings))
    assert settings.kafka.connection()["sasl.password"] == "hunter2"


def test_secrets_in_urls_and_in_librdkafka_options_are_masked() -> None:
    options = '{"ssl.key.password": "hunter2", "sasl.oauthbearer.client.secret": "hunter3", "client.id": "me"}'
    settings = load(
        MODEL, f"--kafka.client_options={options}", "--catalog.url=rediss://user:p@ss/2@redis.example:6380/1"
    )
    shown = redacted(settings)
    assert shown["kafka"]["client_options"]["client.id"] == "me"
    assert not {"hunter2", "hunter3", "p@ss"} & set(str(shown).split("'"))
    assert "p@ss" not in str(shown)


def test_the_settings_that_are_logged_are_those_that_differ_from_the_defaults() -> None:
    settings = load(MODEL, "--kafka.sasl_password=hunter2", "--recall.width=256", "--recall.top_k=7")
    shown = changed(settings)
    assert shown["recall"] == {"top_k": 7}
    assert "batch" not in shown
    assert "hunter2" not in str(shown)


def test_a_bad_secret_is_not_repeated_in_the_message() -> None:
    with pytest.raises((ValidationError, SettingsError)) as refusal:
        load(MODEL, toml('[kafka]\nsasl_password = ["hunter2"]\n'))
    error = refusal.value
    assert "hunter2" not in (describe(error) if isinstance(error, ValidationError) else str(error))


class OneSection(LayeredSettings):
    """A command that takes one section and has an option that is named like another."""

    log: LogSettings = LogSettings()
    catalog: Path | None = None


def test_a_command_takes_its_sections_and_checks_the_names_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    path = toml('[log]\nlevel = "error"\n[http]\nport = 5\n')
    monkeypatch.setenv("RECALLSTREAM_ENGINE__MAX_WIDTH", "30")
    command = CliApp.run(OneSection, cli_args=[path, "--catalog=c.rsc"], cli_exit_on_error=False)
    assert (command.log.level, command.catalog) == ("error", Path("c.rsc"))
    with pytest.raises(SettingsError, match=r"http\.prot"):
        CliApp.run(OneSection, cli_args=[toml("[http]\nprot = 5\n")], cli_exit_on_error=False)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(MODEL).http = HttpSettings()  # type: ignore[misc]  # the very thing that must not be possible
