"""Temporary files of libraries (W&B, PyTorch and others leave theirs when killed) in a place that is ours to remove."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_files_in(directory: Path) -> Iterator[None]:
    """Have this process and its children make their temporary files in ``directory``, which is removed at the end.

    Its parent is removed as well if nothing else was put there.
    """
    made_parent = not directory.parent.exists()
    directory.mkdir(parents=True, exist_ok=True)
    before, os.environ["TMPDIR"], tempfile.tempdir = os.environ.get("TMPDIR"), str(directory), None
    try:
        yield
    finally:
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        tempfile.tempdir = None
        shutil.rmtree(directory, ignore_errors=True)
        if made_parent:
            with contextlib.suppress(OSError):
                directory.parent.rmdir()
