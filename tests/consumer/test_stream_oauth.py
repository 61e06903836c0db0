"""OAUTHBEARER: where tokens come from, what they say, and what is refused."""

import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from consumer.service.settings import redacted
from consumer.stream.oauth import OAuthSettings, TokenError, TokenSource, claims_of
from consumer.stream.settings import KafkaSettings
from tests.consumer.unsecured_jwt import unsecured_jwt

OIDC = {"token_url": "https://login/token", "client_id": "me", "client_secret": "hunter2", "scope": "kafka"}


def test_a_token_from_a_file_comes_with_its_end_and_its_subject(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = TokenSource(OAuthSettings(token_file=path))
    for lifetime in (60, 600):
        path.write_text(token := unsecured_jwt(lifetime))
        found, end, subject, extensions = source("")
        assert (found, subject, extensions) == (token, "alice", {})
        assert end == pytest.approx(time.time() + lifetime, abs=5)


def test_a_token_from_a_command_is_what_it_prints() -> None:
    token = unsecured_jwt(60)
    assert TokenSource(OAuthSettings(token_command=("echo", token)))("")[0] == token


@pytest.mark.parametrize(
    "settings",
    [
        OAuthSettings(token_file=Path("/no/such/file")),
        OAuthSettings(token_command=("false", "hunter2")),
        OAuthSettings(token_command=("/no/such/command", "hunter2")),
        OAuthSettings(token_command=("echo", "no token")),
    ],
)
def test_without_a_token_there_is_a_typed_error_that_shows_no_argument(settings: OAuthSettings) -> None:
    with pytest.raises(TokenError) as raised:
        TokenSource(settings)("")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c.d", "a.!!.c", "a.e30.c", "a.bnVsbA.c"])
def test_what_is_no_token_with_an_end_is_an_error(token: str) -> None:
    with pytest.raises(TokenError, match="no JWT"):
        claims_of(token)


def test_an_openid_provider_is_asked_by_the_client_itself() -> None:
    settings = KafkaSettings.model_validate({"sasl_mechanism": "OAUTHBEARER", "oauth": OIDC})
    options = settings.connection()
    assert options["sasl.oauthbearer.method"] == "oidc"
    assert options["sasl.oauthbearer.client.secret"] == "hunter2"
    assert options["sasl.oauthbearer.scope"] == "kafka"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(redacted(settings))


def test_arguments_of_a_token_command_are_not_shown() -> None:
    oauth = {"token_command": ["get-token", "--secret", "hunter2"]}
    settings = KafkaSettings.model_validate({"sasl_mechanism": "OAUTHBEARER", "oauth": oauth})
    assert "hunter2" not in str(redacted(settings))


@pytest.mark.parametrize(
    ("kafka", "reason"),
    [
        ({"sasl_mechanism": "OAUTHBEARER"}, "needs one of oauth.token_file"),
        ({"oauth": {"token_file": "/token"}}, "oauth needs sasl_mechanism OAUTHBEARER"),
        ({"oauth": OIDC | {"token_file": "/token"}}, "only one of"),
        ({"oauth": {"client_id": "me"}}, "need token_url"),
        ({"oauth": {"token_url": "https://login/token"}}, "needs client_id and client_secret"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(kafka: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        KafkaSettings.model_validate(kafka)
