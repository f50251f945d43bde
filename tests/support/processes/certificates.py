"""An authority of a test's own, and certificates of it for TLS on loopback."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class CertificateFiles:
    """A certificate with its private key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates for 127.0.0.1 into a folder; its own is `authority.pem`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority of the tests")
        self.certificate = folder / "authority.pem"
        own = self._signed(self._name, self._key.public_key(), is_authority=True)
        self.certificate.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> CertificateFiles:
        """Issue a certificate of this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        files = CertificateFiles(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        signed = self._signed(_name(name), key.public_key(), is_authority=False)
        files.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
        return files

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number(), now - _DAY, now + _DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        builder = builder.add_extension(address, critical=False).add_extension(identifier, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
