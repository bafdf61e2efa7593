"""The process that trains: what it may print, where its log goes, what has to be installed."""

import importlib.util
import logging
import warnings
from pathlib import Path

from minisandbox_ray.errors import ConfigError

GPU_MODULES = ("vllm", "vllm_router", "flash_attn")


def check_model(path: str) -> None:
    """Raise ConfigError unless the model's tokenizer can be loaded: before anything is started."""
    from transformers import AutoTokenizer

    from trainer_integration.skyrl import smollm

    if path == str(smollm.checkpoint()):
        smollm.provide()
    try:
        AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"skyrl.trainer.policy.model.path={path} is no model that can be loaded: {reason}") from error


def check_gpu_software() -> None:
    """Raise ConfigError unless what SkyRL trains and samples with on GPUs is installed."""
    missing = [module for module in GPU_MODULES if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"backend=gpu needs {', '.join(missing)}, not installed here: pip install 'minisandbox-ray[skyrl-gpu]' "
            "on a machine with NVIDIA GPUs and CUDA, or set backend=cpu"
        )


def quieten() -> None:
    """Keep the terminal for one line per step."""
    import skyrl.utils.log  # noqa: F401 (adds the terminal handler that is taken out here)
    from loguru import logger
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    logger.remove()
    logging.getLogger("skyrl").handlers.clear()
    warnings.filterwarnings("ignore", message=".*set_vital.*")  # torchdata with a newer PyTorch


def log_to(run_dir: Path) -> None:
    """What SkyRL and Python's logging have to say goes to a file."""
    from loguru import logger

    path = run_dir / "logs" / "train.log"
    path.parent.mkdir(exist_ok=True)
    logger.remove()
    logger.add(path, level="INFO")
    # SkyRL's workers would otherwise set Python's logging up to write to the terminal.
    logging.basicConfig(filename=path, level=logging.INFO)
