"""What the tests of some repositories want to run beside them, since sandboxes have no network."""

from minisandbox_ray.environments import Service

HTTPBIN = Service(
    name="httpbin",
    packages=["httpbin==0.10.2", "gunicorn==23.0.0", "setuptools==75.1.0"],
    command="gunicorn --bind 127.0.0.1:8880 --worker-class gthread --threads 16 --keep-alive 60 httpbin:app",
    ready=8880,
    variables={"HTTPBIN_URL": "http://127.0.0.1:8880/"},
)
"""The tests of requests talk to a server of Kenneth Reitz's; the package is the same program."""


def services_of(repository: str) -> list[Service]:
    """For the repository owner/name."""
    return [HTTPBIN] if repository == "psf/requests" else []
