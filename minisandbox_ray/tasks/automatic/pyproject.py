"""What a pyproject.toml says about installing and testing, in the dialects that there are."""

import tomllib
from dataclasses import dataclass, field
from typing import Any

from minisandbox_ray.tasks.automatic.requirements import from_poetry, parse, poetry_specifier
from minisandbox_ray.tasks.automatic.tree import SourceTree


@dataclass
class Declared:
    """What one or several files declare."""

    name: str = ""
    version: str = ""
    requires_python: str = ""
    dependencies: list[str] = field(default_factory=list)
    extras: dict[str, list[str]] = field(default_factory=dict)
    """Optional dependencies by extra."""
    groups: dict[str, list[str]] = field(default_factory=dict)
    """Development dependencies by group, under whatever name."""
    classifiers: list[str] = field(default_factory=list)
    backend: str = ""
    build_requires: list[str] = field(default_factory=list)
    tools: dict[str, Any] = field(default_factory=dict)
    """pyproject's [tool] table."""


def read(tree: SourceTree) -> Declared:
    """Of the tree's pyproject.toml and hatch.toml; nothing if there is none or it does not parse."""
    found = Declared()
    document = toml_table(tree.text("pyproject.toml"))
    system = _table(document, "build-system")
    found.backend = _text(system.get("build-backend"))
    found.build_requires = _texts(system.get("requires"))
    found.tools = _table(document, "tool")
    _read_project(found, _table(document, "project"))
    _read_groups(found, _table(document, "dependency-groups"))
    _read_poetry(found, _table(found.tools, "poetry"))
    _read_flit(found, _table(found.tools, "flit", "metadata"))
    for group, listed in _table(found.tools, "pdm", "dev-dependencies").items():
        found.groups.setdefault(group, []).extend(_texts(listed))
    if listed := _texts(_table(found.tools, "uv").get("dev-dependencies")):
        found.groups.setdefault("dev", []).extend(listed)
    environments = _table(found.tools, "hatch", "envs") | _table(toml_table(tree.text("hatch.toml")), "envs")
    for name, environment in environments.items():
        if isinstance(environment, dict):
            listed = _texts(environment.get("dependencies")) + _texts(environment.get("extra-dependencies"))
            for extra in _texts(environment.get("features")):
                listed += found.extras.get(extra, [])
            found.groups.setdefault("dev" if name == "default" else name, []).extend(listed)
    return found


def toml_table(text: str) -> dict[str, Any]:
    """A TOML document; empty if it does not parse."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return {}


def _read_project(found: Declared, project: dict[str, Any]) -> None:
    found.name, found.version = _text(project.get("name")), _text(project.get("version"))
    found.requires_python = _text(project.get("requires-python"))
    found.dependencies = _texts(project.get("dependencies"))
    found.classifiers = _texts(project.get("classifiers"))
    for extra, listed in _table(project, "optional-dependencies").items():
        found.extras[extra] = _texts(listed)


def _read_groups(found: Declared, groups: dict[str, Any]) -> None:
    def expand(name: str, seen: frozenset[str]) -> list[str]:
        listed: list[str] = []
        for entry in groups.get(name) or []:
            if isinstance(entry, str):
                listed.append(entry)
            elif isinstance(entry, dict) and (inner := _text(entry.get("include-group"))) and inner not in seen:
                listed += expand(inner, seen | {inner})
        return listed

    for name, listed in groups.items():
        if isinstance(listed, list):
            found.groups[name] = expand(name, frozenset({name}))


def _read_poetry(found: Declared, poetry: dict[str, Any]) -> None:
    table = _table(poetry, "dependencies")
    found.name = found.name or _text(poetry.get("name"))
    found.version = found.version or _text(poetry.get("version"))
    found.classifiers = found.classifiers or _texts(poetry.get("classifiers"))
    python = table.get("python")
    if isinstance(python, str) and not found.requires_python:
        found.requires_python = poetry_specifier(python)
    needed = {name: value for name, value in table.items() if not (isinstance(value, dict) and value.get("optional"))}
    found.dependencies = found.dependencies or from_poetry(needed)
    for extra, names in _table(poetry, "extras").items():
        wanted = {name: table[name] for name in _texts(names) if name in table}
        found.extras.setdefault(extra, from_poetry(wanted))
    groups = {"dev": _table(poetry, "dev-dependencies")}
    groups |= {name: _table(group, "dependencies") for name, group in _table(poetry, "group").items() if group}
    for name, listed in groups.items():
        if listed:
            found.groups.setdefault(name, []).extend(from_poetry(listed))


def _read_flit(found: Declared, flit: dict[str, Any]) -> None:
    found.name = found.name or _text(flit.get("dist-name")) or _text(flit.get("module"))
    found.requires_python = found.requires_python or _text(flit.get("requires-python"))
    found.dependencies = found.dependencies or _texts(flit.get("requires"))
    for extra, listed in _table(flit, "requires-extra").items():
        found.extras.setdefault(extra, _texts(listed))


def _table(value: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def names_of(requirements: list[str]) -> set[str]:
    """Lower-case project names."""
    return {requirement.name.lower() for text in requirements if (requirement := parse(text))}
