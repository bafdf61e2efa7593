"""Tools by the names that a configuration has for them."""

import importlib
from functools import lru_cache

from minisandbox_ray.rollout.tools.base import Tool
from minisandbox_ray.rollout.tools.bash import Bash
from minisandbox_ray.rollout.tools.editor import StrReplaceEditor
from minisandbox_ray.rollout.tools.submit import SubmitTool

_OURS: dict[str, type[Tool]] = {tool.name: tool for tool in (Bash, StrReplaceEditor, SubmitTool)}
DEFAULT_TOOLS = tuple(_OURS)


@lru_cache(maxsize=64)
def load_tools(names: tuple[str, ...]) -> dict[str, type[Tool]]:
    """Tools by the names that a model calls them by. Raises ValueError for one that there is not."""
    found: dict[str, type[Tool]] = {}
    for name in names:
        tool = _OURS.get(name) or _load(name)
        if tool.name in found:
            raise ValueError(f"two tools are called {tool.name}")
        found[tool.name] = tool
    if SubmitTool.name not in found:
        raise ValueError(f"without the tool {SubmitTool.name} no episode can be ended")
    return found


def _load(name: str) -> type[Tool]:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"no tool {name}: choose of {', '.join(_OURS)}, or module:Class of your own")
    try:
        tool = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no tool {name}: {error}") from error
    if not (isinstance(tool, type) and issubclass(tool, Tool) and isinstance(getattr(tool, "name", None), str)):
        raise ValueError(f"{name} is no tool: expected a subclass of minisandbox_ray.rollout.tools.Tool with a name")
    return tool
