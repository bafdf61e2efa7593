"""Sandboxes on one Linux machine: namespaces, a copy-on-write root, a terminal, limits. No daemon, no images.

>>> from minisandbox_ray.sandbox import Sandbox, SandboxSpec
>>> with Sandbox(SandboxSpec()) as sandbox:
...     sandbox.run("echo hello").output
'hello\\n'
"""

from .diff import DiffTooLargeError
from .sandbox import Sandbox, WallTimeError, check_supported
from .session import BrokenSandboxError
from .spec import Bind, CommandResult, ExecResult, Limits, Overlay, SandboxSpec
from .terminal import Terminal

__all__ = [
    "Bind",
    "BrokenSandboxError",
    "CommandResult",
    "DiffTooLargeError",
    "ExecResult",
    "Limits",
    "Overlay",
    "Sandbox",
    "SandboxSpec",
    "Terminal",
    "WallTimeError",
    "check_supported",
]
