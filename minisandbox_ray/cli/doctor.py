"""Say whether sandboxes work on this machine, and what is missing where they don't."""

import argparse

from minisandbox_ray.sandbox import Sandbox, SandboxSpec, check_supported


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb takes no argument."""


def run(arguments: argparse.Namespace) -> int:
    """Start one sandbox for real. Raises SandboxError with the reason where that fails."""
    check_supported()
    with Sandbox(SandboxSpec()) as sandbox:
        answer = sandbox.run("echo $((6 * 7)); id -u; ls /proc | grep -c '^[0-9]'")
    ok = answer.output.split()[:2] == ["42", "0"]
    print("sandboxes work here" if ok else f"a sandbox started but answered {answer.output!r}")
    return 0 if ok else 1
