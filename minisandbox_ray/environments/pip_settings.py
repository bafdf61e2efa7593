"""The host's pip settings that a build may use: an allow-list, for build sandboxes only.

URLs may hold credentials: these values go into a build's environment and nowhere else (no manifest, no log).
"""

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from minisandbox_ray.errors import BuildError
from minisandbox_ray.sandbox import Bind

OPTIONS = (
    "index-url",
    "extra-index-url",
    "no-index",
    "find-links",
    "trusted-host",
    "cert",
    "constraint",
    "proxy",
    "default-timeout",
    "timeout",
    "retries",
)
"""What is taken over from pip's configuration files and PIP_* variables."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
VARIABLES = (*_CERTIFICATES, *_PROXIES, *(name.upper() for name in _PROXIES))
"""What is taken over from the environment besides."""
_PATIENCE = 60


@dataclass(frozen=True)
class PipSettings:
    """Environment variables for pip in a build, and the host's files that they name."""

    variables: dict[str, str] = field(repr=False)
    binds: list[Bind]

    def redact(self, text: str) -> str:
        """Take credentials in URLs out of what is shown to people."""
        return re.sub(r"(://)[^/\s@]+@", r"\1****@", text)


def host_pip_settings() -> PipSettings:
    """What this host's pip is told by its configuration and environment, reduced to the allow-list."""
    options = _configured() | {
        option: os.environ[_variable(option)] for option in OPTIONS if os.environ.get(_variable(option))
    }
    variables = {_variable(option): value for option, value in options.items()}
    variables |= {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    paths: dict[str, Path] = {}
    for word in " ".join(variables.values()).split():
        path = _local_path(word)
        if path is not None:
            paths[str(path)] = path
    for option in ("index-url", "extra-index-url"):
        for word in options.get(option, "").split():
            path = _local_path(word)
            # The pages of an index on disk link to files beside it ("../../files/…").
            if path is not None and path.parent not in (Path("/"), Path.home()):
                paths[str(path.parent)] = path.parent
    outermost = [path for path in paths.values() if not any(each in path.parents for each in paths.values())]
    return PipSettings(
        variables={"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
        binds=[Bind(source=path.resolve(), target=str(path)) for path in outermost],
    )


def _variable(option: str) -> str:
    return f"PIP_{option.replace('-', '_').upper()}"


def _configured() -> dict[str, str]:
    """``pip config list`` merges all of pip's files; later lines don't override earlier ones of another section."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(
            f"`pip config list` took longer than {_PATIENCE} s: this machine is overloaded, try again"
        ) from error
    found: dict[str, str] = {}
    for section in ("global", "install"):
        for line in done.stdout.splitlines():
            key, _, value = line.partition("=")
            if key in [f"{section}.{option}" for option in OPTIONS]:
                found[key.removeprefix(f"{section}.")] = " ".join(str(ast.literal_eval(value)).split())
    return found


def _local_path(word: str) -> Path | None:
    """The existing file or directory that a setting names, by path or file:// URL."""
    if word.startswith("file://"):
        word = unquote(urlsplit(word).path)
    path = Path(word)
    return path if path.is_absolute() and path != Path("/") and path.exists() else None
