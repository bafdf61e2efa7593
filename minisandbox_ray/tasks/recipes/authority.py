"""A certificate authority for the inside of a sandbox; a program of its own, which runs there.

Without arguments it prints the authority's certificate, the same each time: its key is no secret, and nobody else
trusts it. With a host's name it prints a certificate for that, and its key.
"""

import sys
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

_NAME = "minisandbox_ray test authority"
_FROM, _UNTIL = datetime(2020, 1, 1), datetime(2099, 1, 1)


def _certificate(name: str, issuer: str, number: int, key: Ed25519PrivateKey, signer: Ed25519PrivateKey) -> str:
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)]
    is_authority = name == issuer
    builder = x509.CertificateBuilder(names[1], names[0], key.public_key(), number, _FROM, _UNTIL)
    builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    if not is_authority:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return builder.sign(signer, None).public_bytes(serialization.Encoding.PEM).decode()


def main(arguments: list[str]) -> None:
    authority = Ed25519PrivateKey.from_private_bytes(_NAME.encode().ljust(32)[:32])
    if not arguments:
        print("\n" + _certificate(_NAME, _NAME, 1, authority, authority), end="")
        return
    key = Ed25519PrivateKey.generate()
    print(_certificate(arguments[0], _NAME, 2, key, authority), end="")
    form = serialization.PrivateFormat.PKCS8
    print(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode(), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
