"""OAUTHBEARER tokens: from a file or a command of ours, or fetched by librdkafka itself (OpenID Connect)."""

import binascii
import subprocess
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from engine.errors import RecallstreamError

OAUTHBEARER: Final = "OAUTHBEARER"
_COMMAND_S: Final = 30.0


class TokenError(RecallstreamError):
    """There is no token to log in with."""


class OAuthSettings(BaseModel):
    """Where tokens come from: one of ``token_file``, ``token_command`` and ``token_url``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_file: Path | None = Field(None, description="a file that holds a JWT and is renewed by somebody else")
    token_command: tuple[str, ...] = Field((), description="a command and its arguments that print a JWT")
    token_url: str | None = Field(None, min_length=1, description="endpoint of an OpenID provider: client credentials")
    client_id: str | None = Field(None, description="for token_url")
    client_secret: SecretStr | None = Field(None, description="for token_url; never logged")
    scope: str | None = Field(None, description="for token_url")

    @property
    def given(self) -> bool:
        """Whether there is a source of tokens."""
        return bool(self.token_file or self.token_command or self.token_url)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(map(bool, (self.token_file, self.token_command, self.token_url))) > 1:
            raise ValueError("only one of token_file, token_command and token_url")
        if self.token_url is None and (self.client_id or self.client_secret or self.scope):
            raise ValueError("client_id, client_secret and scope need token_url")
        if self.token_url is not None and not (self.client_id and self.client_secret):
            raise ValueError("token_url needs client_id and client_secret")
        return self

    def client_options(self) -> dict[str, Any]:
        """What a client needs; holds the secret in clear."""
        if self.token_url is None:
            return {"oauth_cb": TokenSource(self)} if self.given else {}
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.token_url,
            "sasl.oauthbearer.client.id": self.client_id,
            "sasl.oauthbearer.client.secret": self.client_secret.get_secret_value() if self.client_secret else "",
            **({} if self.scope is None else {"sasl.oauthbearer.scope": self.scope}),
        }


class _Claims(msgspec.Struct):
    exp: float
    sub: str = ""


class TokenSource:
    """What librdkafka calls, in a thread of its own, before the last token ends: at 80 % of its life.

    Raises TokenError, which the client reports as failed authentication before it asks again.
    """

    def __init__(self, settings: OAuthSettings) -> None:
        self._settings = settings

    def __call__(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """The token, its end in seconds since the epoch, its subject, no extensions."""
        token = self._read()
        claims = claims_of(token)
        return token, claims.exp, claims.sub, {}

    def _read(self) -> str:
        if path := self._settings.token_file:
            try:
                return path.read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise TokenError(f"oauth.token_file: {error}") from error
        command = self._settings.token_command
        try:
            made = subprocess.run(  # noqa: S603 - the operator's own command
                command, capture_output=True, text=True, timeout=_COMMAND_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:  # whose texts hold the arguments, secrets maybe
            raise TokenError(f"oauth.token_command: {type(error).__name__}") from None
        return made.stdout.strip()


def claims_of(token: str) -> _Claims:
    """When a JWT ends and whose it is; its signature is the brokers' to check. Raises TokenError."""
    try:
        _, payload, _ = token.split(".")
        return msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Claims)
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise TokenError("the token is no JWT with an expiry time") from error
