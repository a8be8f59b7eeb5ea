"""Certificates, and TLS in front of servers without it."""

import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from jobrunner.soak.fault_proxy import FaultProxy, Target

_HELLO = b"\x16"
"""The first byte of a connection over TLS."""
_SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Authority:
    """Signs certificates; all files are in `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        own = self._builder(self._name, self._key, days=1).add_extension(x509.BasicConstraints(True, None), True)
        own = own.add_extension(_SIGNS_CERTIFICATES, True)
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, host: str = "127.0.0.1", *, days: int = 1) -> Path:
        """A file with the key and the certificate of a host, which ends in so many days."""
        key = ec.generate_private_key(ec.SECP256R1())
        named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        hosts: list[x509.GeneralName] = [x509.IPAddress(ip_address(host))]
        made = self._builder(named, key, days=days).add_extension(x509.SubjectAlternativeName(hosts), False)
        file = self._folder / f"{host}.{days}.pem"
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        signed = made.sign(self._key, hashes.SHA256())
        file.write_bytes(text + signed.public_bytes(serialization.Encoding.PEM))
        return file

    def _builder(self, subject: x509.Name, key: Any, *, days: int) -> x509.CertificateBuilder:
        """Adds the identifiers of both keys, without which Python 3.13 refuses a certificate."""
        now = datetime.now(UTC)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=10))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(issuer, False)
        )


class TlsProxy(FaultProxy):
    """Ends TLS in front of a server without it. `takes_plain`: also passes on connections that begin without TLS.
    `clients`: the file of the authority that signs the certificates of clients, which have to have one then."""

    def __init__(
        self, target: Target, certificate: Path, *, takes_plain: bool = False, clients: Path | None = None
    ) -> None:
        self._takes_plain = takes_plain
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        if clients is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(clients)
        super().__init__(target)

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        if self._takes_plain and near.recv(1, socket.MSG_PEEK) != _HELLO:
            super()._carry(near, far)
            return
        with suppress(OSError):
            wrapped = self._context.wrap_socket(near, server_side=True)
            self._sockets.append(wrapped)
            super()._carry(wrapped, far)
        for end in (near, far):
            end.close()
