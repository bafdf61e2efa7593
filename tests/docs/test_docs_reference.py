"""What the pages quote: keys from the models, messages from the code."""

import ast
import re
import runpy

import pytest

from .pages import DOCS, ROOT


def test_the_configuration_reference_is_up_to_date() -> None:
    for package in ("skyrl", "swerex", "minisweagent"):
        pytest.importorskip(package, reason="models of all bridges are in it")
    made = runpy.run_path(str(DOCS / "generate.py"))["page"]()
    assert (DOCS / "configuration.md").read_text() == made, "run `python docs/generate.py`"


def template(node: ast.expr) -> str | None:
    """A text of the source, with `…` for what is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = ("…" if isinstance(part, ast.FormattedValue) else str(part.value) for part in node.values)  # type: ignore[attr-defined]
        return re.sub("…+", "…", "".join(parts))
    return None


def test_messages_are_those_of_the_code() -> None:
    said = set()
    for package in ("minisandbox_ray", "trainer_integration"):
        for path in (ROOT / package).rglob("*.py"):
            said |= {text for node in ast.walk(ast.parse(path.read_text())) if (text := template(node))}  # type: ignore[arg-type]
    quoted = re.findall(r"^### `+(.*?)`+$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(quoted) > 20
    for message in quoted:
        start = message.strip("… ")
        assert any(start in text for text in said), message
