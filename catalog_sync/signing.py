"""Ed25519 signatures of manifests, by the ``cryptography`` library (extra ``signing``)."""

import base64
import binascii
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from catalog_sync.layout import Manifest
from engine.errors import CatalogError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_CONTEXT = b"recallstream manifest\n"


def sign(manifest: Manifest, key_file: Path) -> Manifest:
    """The manifest with a signature by the PEM private key in ``key_file``. Raises CatalogError ``key``."""
    with _installed():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(key_file), password=None)
    except (ValueError, TypeError) as error:
        raise CatalogError("key", f"{key_file}: not a PEM private key without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise CatalogError("key", f"{key_file}: not an Ed25519 key")
    return msgspec.structs.replace(manifest, signature=base64.b64encode(key.sign(_signed_bytes(manifest))).decode())


class TrustedKeys:
    """Checks manifests against public keys in PEM files; without any, every manifest passes.

    Raises CatalogError ``key`` if a file is no Ed25519 public key.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._keys = [_public_key(file) for file in files]

    def check(self, manifest: Manifest) -> None:
        """Raises CatalogError ``unsigned`` or ``signature``."""
        if not self._keys:
            return
        if manifest.signature is None:
            raise CatalogError("unsigned", f"the manifest of version {manifest.version} is not signed")
        try:
            signature = base64.b64decode(manifest.signature, validate=True)
        except binascii.Error as error:
            raise CatalogError("signature", f"the signature of version {manifest.version} is not base64") from error
        if not any(_verifies(key, signature, _signed_bytes(manifest)) for key in self._keys):
            raise CatalogError("signature", f"the signature of version {manifest.version} is by no trusted key")


def write_key_pair(private: Path, public: Path) -> None:
    """Write a new key pair as PEM files, the private one readable by its owner only. Raises CatalogError ``key``."""
    with _installed():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    _write_new(private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    _write_new(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise CatalogError("key", f"signatures need {error.name}: pip install 'recallstream[signing]'") from error


def _signed_bytes(manifest: Manifest) -> bytes:
    unsigned = msgspec.to_builtins(msgspec.structs.replace(manifest, signature=None), str_keys=True)
    return _CONTEXT + msgspec.json.encode(unsigned, order="deterministic")


def _public_key(file: Path) -> "Ed25519PublicKey":
    with _installed():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    try:
        key = load_pem_public_key(_read(file))
    except ValueError as error:
        raise CatalogError("key", f"{file}: not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise CatalogError("key", f"{file}: not an Ed25519 key")
    return key


def _verifies(key: "Ed25519PublicKey", signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CatalogError("key", f"{file}: {error.strerror or error}") from error


def _write_new(file: Path, data: bytes, mode: int) -> None:
    try:
        file.touch(mode=mode, exist_ok=False)
        file.write_bytes(data)
    except OSError as error:
        raise CatalogError("key", f"{file}: {error.strerror or error}") from error
