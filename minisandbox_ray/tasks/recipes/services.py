"""What the tests of some repositories want to run beside them, since sandboxes have no network."""

from pathlib import Path

from minisandbox_ray.environments import Service

_AUTHORITY = Path(__file__).with_name("authority.py").read_text(encoding="utf-8")
_HOME = "/opt/services/httpbin"
_SERVE = "gunicorn --worker-class gthread --threads 16 --keep-alive 60 --bind"
_TLS = "--certfile /tmp/httpbin.org.pem --keyfile /tmp/httpbin.org.pem"
_PORTS = "for p in (80, 443): socket.create_connection(('127.0.0.1', p))"

HTTPBIN = Service(
    name="httpbin",
    packages=["httpbin==0.10.2", "gunicorn==23.0.0", "setuptools==75.1.0", "cryptography==43.0.1"],
    files={"authority.py": _AUTHORITY},
    command=(
        f"python {_HOME}/files/authority.py httpbin.org > /tmp/httpbin.org.pem && "
        f"({_SERVE} 127.0.0.1:443 {_TLS} httpbin:app & exec {_SERVE} 127.0.0.1:80 httpbin:app)"
    ),
    ready=f'python -c "import socket\n{_PORTS}"',
    hosts=["httpbin.org", "www.google.co.uk"],
)
"""The tests of requests talk to http://httpbin.org and https://httpbin.org; the package is the program that runs there.
From there some are sent on to another host."""

_BUNDLE = "$(python -c 'import requests.certs as certs; print(certs.where())')"
_TRUST = f'{_HOME}/bin/python {_HOME}/files/authority.py >> "{_BUNDLE}"'


def services_of(repository: str) -> list[Service]:
    """For the repository owner/name."""
    return [HTTPBIN] if repository == "psf/requests" else []


def trust_in_services(repository: str) -> list[str]:
    """Commands after which the repository's programs trust the certificates of its services."""
    return [_TRUST] if repository == "psf/requests" else []
