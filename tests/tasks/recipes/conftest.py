"""A small repository, in a mirror directory."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

DATES = {"GIT_AUTHOR_DATE": "2023-03-11T16:00:00Z", "GIT_COMMITTER_DATE": "2023-03-11T16:00:00Z"}
NAMES = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}

Mirror = Callable[[str, dict[str, str]], str]


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    place = tmp_path / "mirror"
    place.mkdir()
    return place


@pytest.fixture
def commit_to(mirror: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mirror:
    """Commits files to a repository owner/name of the mirror; gives the commit's id."""
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path / "cache"))

    def commit(repository: str, files: dict[str, str]) -> str:
        place = mirror / repository.replace("/", "__")

        def git(*words: str) -> str:
            settings = {"GIT_CONFIG_GLOBAL": "/dev/null", **NAMES, **DATES}
            environment = {**os.environ, **settings}
            command = ["git", "-C", str(place), *words]
            return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

        if not place.exists():
            place.mkdir()
            git("init", "-q", "-b", "main")
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", "state")
        return git("rev-parse", "HEAD")

    return commit
