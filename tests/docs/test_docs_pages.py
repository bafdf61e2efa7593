"""The pages' commands: run, or, of those that need what CI has not, checked by whoever would read them."""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox_ray.cli.main import VERBS
from minisandbox_ray.cluster import ClusterConfig, connect
from minisandbox_ray.config import load_config, read_arguments

from .pages import DOCS, ROOT, Block, blocks, pages

FIRST = "quickstart"
"""Its files and what its commands make are there for all others."""
RUNNABLE = [page for page in pages() if page != FIRST and any(block.note == "runs" for block in blocks(page))]


def run(page: str, place: Path, env: dict[str, str]) -> None:
    """Write the page's files, and run its commands in order."""
    for block in blocks(page):
        if block.language != "bash" and block.note:
            (place / block.note).parent.mkdir(parents=True, exist_ok=True)
            (place / block.note).write_text(block.text)
        elif block.note == "runs":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                cwd=place,
                env=env,
                stdin=subprocess.DEVNULL,
                timeout=300,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode and "building" in done.stderr and "pip" in done.stderr:
                pytest.skip(f"no environment without a package index: {done.stderr.splitlines()[0]}")
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def scratch(sandboxes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """(a directory in which the first page was followed, the environment); one Ray for all, to save time."""
    place = tmp_path_factory.mktemp("docs")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MINISANDBOX"))}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    env["MINISANDBOX_CACHE"] = str(place / "cache")
    with tempfile.TemporaryDirectory(prefix="ray-") as ray_dir, connect(ClusterConfig(address="local"), Path(ray_dir)):
        import ray

        env["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        run(FIRST, place, env)
        yield place, env


@pytest.mark.parametrize("page", RUNNABLE)
def test_what_a_page_says_runs(page: str, scratch: tuple[Path, dict[str, str]]) -> None:
    if page == "agents":
        pytest.importorskip("swerex", reason="SWE-ReX is not installed")
    run(page, *scratch)


@pytest.mark.parametrize("block", [block for page in pages() for block in blocks(page)], ids=lambda block: block.page)
def test_every_block_of_commands_runs_or_says_what_it_needs(block: Block) -> None:
    if block.language != "bash":
        return
    assert block.note == "runs" or block.note.startswith("needs "), block.text
    assert subprocess.run(["bash", "-n", "-c", block.text], check=False).returncode == 0
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        for word in words:
            if re.match(r"(config=)?configs/", word):
                assert (ROOT / word.removeprefix("config=")).exists(), word
        if block.note != "runs" and "python" in words:
            check(words[words.index("python") + 1 :])


def check(words: list[str]) -> None:
    """The options of a command of ours: by its parser; a configuration's, by who loads it."""
    assert words[0] == "-m"
    module, *arguments = words[1:]
    if module == "minisandbox_ray":
        parser = argparse.ArgumentParser(exit_on_error=False)
        VERBS[arguments[0]].add_arguments(parser)
        parser.parse_args(arguments[1:])
    elif module == "minisandbox_ray.train":
        load_config([re.sub("^config=", f"config={ROOT}/", each) for each in arguments])
    elif module == "minisandbox_ray.sft":
        read_arguments([re.sub("^config=", f"config={ROOT}/", each) for each in arguments], "sft")
    else:
        assert module == "trainer_integration.swe_agent"
        assert arguments[0] in {"run", "run-batch", "run-replay", "import-traj"}


def test_links_lead_somewhere() -> None:
    for page in ["README", *pages()]:
        text = (DOCS / f"{page}.md").read_text()
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", text):
            path = DOCS / target if target else DOCS / f"{page}.md"
            assert path.exists(), f"{page}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
                assert anchor in {title.lower().replace(" ", "-") for title in titles}, f"{page}: {target}#{anchor}"


def test_the_index_has_all_pages() -> None:
    assert {path.stem for path in DOCS.glob("*.md")} == {"README", *pages()}
