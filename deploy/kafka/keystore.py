"""A key and a certificate of 127.0.0.1 for one cluster, made by the JDK's keytool."""

from pathlib import Path

from deploy.kafka.install import run
from deploy.kafka.layout import HOST, KEYSTORE_PASSWORD


def make_keystore(directory: Path) -> tuple[Path, Path]:
    """The PKCS12 key store of the brokers, and the PEM certificate that clients are to trust. Raises BrokerError."""
    keystore, certificate = directory / "broker.p12", directory / "ca.pem"
    store = ["-keystore", str(keystore), "-storetype", "PKCS12", "-storepass", KEYSTORE_PASSWORD, "-alias", "broker"]
    identity = ["-dname", f"CN={HOST}", "-ext", f"san=ip:{HOST}", "-ext", "bc:c", "-validity", "365"]
    run(["keytool", "-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", *identity, *store])
    run(["keytool", "-exportcert", "-rfc", "-file", str(certificate), *store])
    return keystore, certificate
