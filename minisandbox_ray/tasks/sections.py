"""Files that are a product's and its tests' configuration at once: the tests' sections stay as they were."""

import re
import tomllib
from collections.abc import Callable, Iterator

MIXED = frozenset({"setup.cfg", "pyproject.toml"})
"""Names of such files."""


def keep_test_sections(name: str, pristine: str, changed: str) -> str:
    """`changed` with pytest's sections as in `pristine`; `pristine` itself where they cannot be told apart."""
    is_toml = name.endswith(".toml")
    is_test_s = _is_toml_section if is_toml else _is_ini_section
    merged = "".join(_lines(changed, is_test_s, keep=False))
    kept = "".join(_lines(pristine, is_test_s, keep=True))
    if kept:
        merged = f"{merged.rstrip()}\n\n{kept}"
    return merged if _settings(merged, is_toml) == _settings(pristine, is_toml) else pristine


def _lines(text: str, is_test_s: Callable[[str], bool], keep: bool) -> Iterator[str]:
    """The lines of the tests' sections, or of the others."""
    inside = False
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            inside = is_test_s(line)
        if inside == keep:
            yield line


def _is_ini_section(line: str) -> bool:
    return re.match(r"\[\s*(tool:)?pytest\s*\]", line) is not None


def _is_toml_section(line: str) -> bool:
    return re.match(r"\[\[?\s*[\"']?tool[\"']?\s*\.\s*[\"']?pytest[\"']?\s*[.\]]", line) is not None


def _settings(text: str, is_toml: bool) -> object:
    """What pytest reads of it. As its parser does, at every line end that Python knows."""
    if is_toml:
        try:
            return tomllib.loads(text).get("tool", {}).get("pytest", {})
        except (tomllib.TOMLDecodeError, AttributeError):
            return None
    lines = list(_lines(text, _is_ini_section, keep=True))
    # A section that begins in a way that is not known here counts as a change.
    odd = [line for line in text.splitlines() if "pytest" in line and line.lstrip("\ufeff \t").startswith("[")]
    return [line.rstrip() for line in [*lines, *sorted(odd)] if line.strip()]
