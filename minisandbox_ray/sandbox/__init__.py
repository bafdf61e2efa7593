"""Sandboxes on one Linux machine: namespaces, a copy-on-write root, a terminal, limits. No daemon, no images.

>>> from minisandbox_ray.sandbox import Sandbox, SandboxSpec
>>> with Sandbox(SandboxSpec()) as sandbox:
...     sandbox.run("echo hello").output
'hello\\n'
"""

from .diff import DiffTooLargeError
from .interaction import Interaction, InteractionTimeoutError, Match, ProgramEndedError
from .sandbox import Sandbox, WallTimeError, check_supported
from .session import BrokenSandboxError, SessionBusyError
from .spec import Bind, CommandResult, ExecResult, Isolation, Limits, Overlay, SandboxSpec
from .terminal import Terminal

__all__ = [
    "Bind",
    "BrokenSandboxError",
    "CommandResult",
    "DiffTooLargeError",
    "ExecResult",
    "Interaction",
    "InteractionTimeoutError",
    "Isolation",
    "Limits",
    "Match",
    "Overlay",
    "ProgramEndedError",
    "Sandbox",
    "SandboxSpec",
    "SessionBusyError",
    "Terminal",
    "WallTimeError",
    "check_supported",
]
