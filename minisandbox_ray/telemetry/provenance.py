"""What a run was made with."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("minisandbox-ray", "ray", "skyrl", "skyrl-gym", "torch", "transformers", "vllm", "wandb")


def provenance() -> dict[str, str]:
    """Versions by package, of those that are installed, and ``python``; ``git`` is the revision that this package's
    files are checked out from, ``-dirty`` where they were changed, where there is one."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    revision = _git("rev-parse", "HEAD")
    if revision and _git("ls-files", "--error-unmatch", __file__):  # not the repository of somebody who installed it
        versions["git"] = revision + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")
    return versions


def _git(*arguments: str) -> str:
    """What git prints; empty if it fails or is not there."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
