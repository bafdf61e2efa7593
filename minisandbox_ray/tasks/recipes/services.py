"""What the tests of some repositories want to run beside them, since sandboxes have no network."""

from collections.abc import Iterable
from pathlib import Path

from minisandbox_ray.environments import Service

_HERE = Path(__file__).parent
_AUTHORITY = (_HERE / "authority.py").read_text(encoding="utf-8")
_PLACE = "/opt/services"
_SERVE = "gunicorn --worker-class gthread --threads 16 --keep-alive 60 --bind"
_TLS = "--certfile /tmp/httpbin.org.pem --keyfile /tmp/httpbin.org.pem"
_PORTS = "for p in (80, 443): socket.create_connection(('127.0.0.1', p))"
_READY = f'python -c "import socket\n{_PORTS}"'
_CRYPTOGRAPHY = "cryptography==43.0.1"

HTTPBIN = Service(
    name="httpbin",
    packages=["httpbin==0.10.2", "gunicorn==23.0.0", "setuptools==75.1.0", _CRYPTOGRAPHY],
    files={"authority.py": _AUTHORITY},
    command=(
        f"python {_PLACE}/httpbin/files/authority.py httpbin.org > /tmp/httpbin.org.pem && "
        f"({_SERVE} 127.0.0.1:443 {_TLS} httpbin:app & exec {_SERVE} 127.0.0.1:80 httpbin:app)"
    ),
    ready=_READY,
    hosts=["httpbin.org", "www.google.co.uk"],
)
"""The tests of requests talk to http://httpbin.org and https://httpbin.org; the package is the program that runs there.
From there some are sent on to another host."""

_SITES = ["www.google.com", "www.sphinx-doc.org", "www.w3.org"]
SITES = Service(
    name="sites",
    packages=[_CRYPTOGRAPHY],
    files={"authority.py": _AUTHORITY, "sites.py": (_HERE / "sites.py").read_text(encoding="utf-8")},
    command=(
        f"for name in {' '.join(_SITES)}; do "
        f"python {_PLACE}/sites/files/authority.py $name > /tmp/$name.pem || exit 1; done; "
        f"exec python {_PLACE}/sites/files/sites.py {' '.join(_SITES)}"
    ),
    ready=_READY,
    hosts=_SITES,
)
"""The tests of Sphinx's link checker follow links to these."""

_LINK_CHECKER = "tests/test_build_linkcheck.py"
_BUNDLE = "$(python -c 'import requests.certs as certs; print(certs.where())')"


def services_of(repository: str, targets: Iterable[str]) -> list[Service]:
    """For tests (files) of the repository owner/name."""
    if repository == "psf/requests":
        return [HTTPBIN]
    return [SITES] if repository == "sphinx-doc/sphinx" and _LINK_CHECKER in targets else []


def trust_in_services(services: Iterable[Service]) -> list[str]:
    """Commands after which the repository's programs trust the services' certificates."""
    return [
        f'{_PLACE}/{each.name}/bin/python {_PLACE}/{each.name}/files/authority.py >> "{_BUNDLE}"' for each in services
    ]
