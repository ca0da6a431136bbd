"""A certificate authority for one test plane. Client certificates identify its users."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from portal.up.services import write_private

LIFETIME = dt.timedelta(days=2)


class Authority:
    """Writes ca.crt into `folder` and signs certificates. `address` is the plane's API server address."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self._address = address
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("plane-ca", ())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        certificate = (
            self._unsigned(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.path = folder / "ca.crt"
        self.path.write_bytes(self.pem)

    def issue(
        self,
        user: str,
        groups: Sequence[str] = (),
        *,
        file: str,
        addresses: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> tuple[Path, Path]:
        """Returns (certificate, key) files for the user. They also work for a server on `addresses`, `hosts` or the plane's
        address."""
        key = ec.generate_private_key(ec.SECP256R1())
        own = {"127.0.0.1", "10.96.0.1", self._address}
        names = [
            *(x509.DNSName(host) for host in ("localhost", *hosts)),
            *(x509.DNSName(f"kubernetes.default{rest}") for rest in ("", ".svc", ".svc.cluster.local")),
            *(x509.IPAddress(ipaddress.ip_address(ip)) for ip in sorted(own | set(addresses))),
        ]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            self._unsigned(_subject(user, groups), key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self.folder / f"{file}.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path, write_key(self.folder / f"{file}.key", key)

    def _unsigned(self, name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + LIFETIME)
        )


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """Writes the one key format that the API server also accepts for service account keys."""
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    write_private(path, pem.decode())
    return path


def write_kubeconfig(path: Path, url: str, authority: Authority, user: dict[str, str]) -> Path:
    """Writes a kubeconfig. `user` as there: client-certificate-data and client-key-data, or token."""
    ca = base64.b64encode(authority.pem).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "plane", "cluster": {"server": url, "certificate-authority-data": ca}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "user"}}],
        "current-context": "plane",
    }
    write_private(path, json.dumps(document, indent=1))
    return path


def _subject(user: str, groups: Sequence[str]) -> x509.Name:
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, user)])
