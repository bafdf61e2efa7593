"""What setup.cfg, setup.py (its syntax tree) and the metadata in a source distribution say."""

import ast
import configparser
import email.parser
import re
import warnings
from typing import Any

from packaging.markers import InvalidMarker, Marker

from minisandbox_ray.tasks.automatic.pyproject import Declared
from minisandbox_ray.tasks.automatic.requirements import parse
from minisandbox_ray.tasks.automatic.tree import SourceTree

_UNKNOWN = object()


def read_setup_cfg(tree: SourceTree) -> Declared:
    """Of the declarative setup.cfg."""
    found = Declared()
    config = parse_ini(tree.text("setup.cfg"))
    found.name = _get(config, "metadata", "name")
    version = _get(config, "metadata", "version")
    found.version = "" if version.startswith(("attr:", "file:")) else version
    found.classifiers = _listed(_get(config, "metadata", "classifiers") or _get(config, "metadata", "classifier"))
    found.requires_python = _get(config, "options", "python_requires")
    found.dependencies = _listed(_get(config, "options", "install_requires"))
    found.build_requires = _listed(_get(config, "options", "setup_requires"))
    if tests := _listed(_get(config, "options", "tests_require")):
        found.groups["tests_require"] = tests
    if config.has_section("options.extras_require"):
        for extra, value in config.items("options.extras_require"):
            found.extras[extra] = _listed(value)
    return found


def parse_ini(text: str) -> configparser.RawConfigParser:
    """An INI file, as far as it parses: duplicates and values without a key are other tools' business."""
    config = configparser.RawConfigParser(strict=False, allow_no_value=True)
    config.optionxform = str  # type: ignore[method-assign, assignment]
    try:
        config.read_string(text)
    except configparser.Error:
        pass  # what was read up to there counts
    return config


def _get(config: configparser.RawConfigParser, section: str, option: str) -> str:
    for name in (option, option.replace("_", "-")):
        if config.has_option(section, name):
            return config.get(section, name) or ""
    return ""


def _listed(value: str) -> list[str]:
    lines = (
        value.splitlines() if "\n" in value.strip() else value.split(";" if ";" in value and "'" not in value else "\n")
    )
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith(("#", "file:"))]


def read_setup_py(tree: SourceTree) -> Declared:
    """The arguments of setup(…) as far as they are literals or names and sums of literals. The file is not run."""
    found = Declared()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(tree.text("setup.py"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    names: dict[str, Any] = {}
    calls: list[ast.Call] = []
    try:
        for node in ast.walk(module):
            _learn(node, names)
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setup":
                calls.append(node)
        given: dict[str, Any] = {}
        for call in calls:
            for keyword in call.keywords:
                value = _value(keyword.value, names)
                if keyword.arg is None and isinstance(value, dict):
                    given = {**value, **given}
                elif keyword.arg is not None and value is not _UNKNOWN:
                    given[keyword.arg] = value
    except RecursionError:
        return found
    found.name, found.version = _string(given.get("name")), _string(given.get("version"))
    found.requires_python = _string(given.get("python_requires"))
    found.dependencies = _strings(given.get("install_requires"))
    found.build_requires = _strings(given.get("setup_requires"))
    found.classifiers = _strings(given.get("classifiers"))
    if tests := _strings(given.get("tests_require")):
        found.groups["tests_require"] = tests
    extras = given.get("extras_require")
    if isinstance(extras, dict):
        found.extras = {extra: _strings(value) for extra, value in extras.items() if isinstance(extra, str)}
    return found


def _learn(node: ast.AST, names: dict[str, Any]) -> None:
    """Assignments to names and to keys of known tables."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and isinstance(node.op, ast.Add):
            old, more = names.get(node.target.id, _UNKNOWN), _value(node.value, names)
            if isinstance(old, list) and isinstance(more, list) and len(old) < 1000:
                names[node.target.id] = old + more
        return
    target, value = node.targets[0], _value(node.value, names)
    if value is _UNKNOWN:
        return
    if isinstance(target, ast.Name):
        names[target.id] = value
    elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        table, key = names.get(target.value.id), _value(target.slice, names)
        if isinstance(table, dict) and isinstance(key, str):
            table[key] = value


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id, _UNKNOWN)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        values = [_value(each.value if isinstance(each, ast.Starred) else each, names) for each in node.elts]
        flat: list[Any] = []
        for each, value in zip(node.elts, values, strict=True):
            flat += value if isinstance(each, ast.Starred) and isinstance(value, list) else [value]
        return [each for each in flat if each is not _UNKNOWN]
    if isinstance(node, ast.Dict):
        table: dict[str, Any] = {}
        for key, value_node in zip(node.keys, node.values, strict=True):
            value = _value(value_node, names)
            if key is None:
                table |= value if isinstance(value, dict) else {}
            elif isinstance(name := _value(key, names), str) and value is not _UNKNOWN:
                table[name] = value
        return table
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(left, list) or isinstance(right, list):
            return (left if isinstance(left, list) else []) + (right if isinstance(right, list) else [])
        if isinstance(left, str) and isinstance(right, str):
            return left + right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"list", "sorted", "dict"}:
        if node.func.id == "dict":
            pairs = {each.arg: _value(each.value, names) for each in node.keywords if each.arg}
            return {key: value for key, value in pairs.items() if value is not _UNKNOWN}
        return _value(node.args[0], names) if node.args else []
    if isinstance(node, ast.Subscript):
        table, key = _value(node.value, names), _value(node.slice, names)
        if isinstance(table, dict) and isinstance(key, str):
            return table.get(key, _UNKNOWN)
    return _UNKNOWN


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return _listed(value)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def read_metadata(tree: SourceTree) -> Declared:
    """PKG-INFO, and the requires.txt that old setuptools wrote beside it."""
    found = Declared()
    places = [
        "PKG-INFO",
        *tree.matching(r"^[^/]+\.egg-info/PKG-INFO$"),
        *tree.matching(r"^src/[^/]+\.egg-info/PKG-INFO$"),
    ]
    text = next((tree.text(path) for path in places if tree.text(path)), "")
    message = email.parser.HeaderParser().parsestr(text)
    found.name, found.version = str(message.get("Name", "")), str(message.get("Version", ""))
    found.requires_python = str(message.get("Requires-Python", ""))
    found.classifiers = [str(each) for each in message.get_all("Classifier", [])]
    for line in map(str, message.get_all("Requires-Dist", [])):
        requirement, extra = split_extra(line)
        if requirement:
            (found.extras.setdefault(extra, []) if extra else found.dependencies).append(requirement)
    if not found.dependencies and not found.extras:
        for path in tree.matching(r"\.egg-info/requires\.txt$")[:1]:
            _read_requires(found, tree.text(path))
    return found


def split_extra(line: str) -> tuple[str, str]:
    """A Requires-Dist line as a requirement without the condition on an extra, and the extra."""
    requirement = parse(re.sub(r"\s\(([^()]*)\)", r"\1", line))
    if requirement is None:
        return "", ""
    marker = str(requirement.marker or "")
    match = re.search(r"""extra\s*==\s*["']([^"']+)["']""", marker)
    if match is None:
        return str(requirement), ""
    rest = (marker[: match.start()].rstrip() + " " + marker[match.end() :].lstrip()).strip()
    rest = re.sub(r"^(and|or)\b|\b(and|or)$|\(\s*\)", "", rest).strip()
    rest = re.sub(r"^(and|or)\b|\b(and|or)$", "", rest).strip()
    try:
        requirement.marker = Marker(rest) if rest else None
    except InvalidMarker:
        requirement.marker = None
    return str(requirement), match[1]


def _read_requires(found: Declared, text: str) -> None:
    into, marker = found.dependencies, ""
    for raw in text.splitlines():
        line = raw.strip()
        section = re.fullmatch(r"\[([^:\]]*)(?::(.*))?\]", line)
        if section:
            into = found.extras.setdefault(section[1], []) if section[1] else found.dependencies
            marker = section[2] or ""
        elif line:
            into.append(f"{line}; {marker}" if marker else line)
