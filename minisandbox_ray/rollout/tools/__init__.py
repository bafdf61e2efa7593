"""Tools that a model calls by name, as in SWE-agent: `bash`, `str_replace_editor`, `submit`, and your own."""

from minisandbox_ray.rollout.tools.base import Machine, Tool, ToolError
from minisandbox_ray.rollout.tools.bash import Bash
from minisandbox_ray.rollout.tools.calls import CallError, document, parse_call, schemas, write_call
from minisandbox_ray.rollout.tools.editor import StrReplaceEditor
from minisandbox_ray.rollout.tools.registry import DEFAULT_TOOLS, load_tools
from minisandbox_ray.rollout.tools.submit import SubmitTool

__all__ = [
    "DEFAULT_TOOLS",
    "Bash",
    "CallError",
    "Machine",
    "StrReplaceEditor",
    "SubmitTool",
    "Tool",
    "ToolError",
    "document",
    "load_tools",
    "parse_call",
    "schemas",
    "write_call",
]
