"""A certificate authority for one test: a server's certificate, and the bundle that trusts it. Expires in a day."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = timedelta(days=1)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]),
        subject_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - DAY,
        not_valid_after=now + DAY,
    )
    return builder.add_extension(extension, critical=True).sign(signer, hashes.SHA256())


def server_tls(folder: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context, and the file with the authority to trust.

    The certificate is for ``names`` (DNS names or addresses; none given: localhost and 127.0.0.1).
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate(
        "Test CA", authority_key, "Test CA", authority_key, x509.BasicConstraints(ca=True, path_length=0)
    )
    alternatives = x509.SubjectAlternativeName([_general(name) for name in names or ("localhost", "127.0.0.1")])
    certificate = _certificate("server", key, "Test CA", authority_key, alternatives)
    bundle, pair = folder / "ca.pem", folder / "server.pem"
    bundle.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pair.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    return context, bundle


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
