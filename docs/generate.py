"""Writes docs/configuration.md from the models: ``python docs/generate.py``. A test checks that it was run."""

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from minisandbox_ray.config import TrainConfig
from minisandbox_ray.environments import EnvSpec
from minisandbox_ray.rollout.chat import ChatConfig
from minisandbox_ray.tasks import FactoryConfig, Task
from minisandbox_ray.tasks.automatic.find import AutomaticConfig
from trainer_integration.mini_swe_agent import MiniSandboxEnvironmentConfig
from trainer_integration.skyrl.sft import SftConfig
from trainer_integration.swe_agent import MiniSandboxDeploymentConfig

PAGE = Path(__file__).parent / "configuration.md"
ROOTS: dict[type[BaseModel], str] = {
    TrainConfig: "`python -m minisandbox_ray.train config=FILE [key=value …]`, and where a verb takes a configuration",
    SftConfig: "`python -m minisandbox_ray.sft config=FILE [key=value …]`",
    ChatConfig: "`rollout --policy FILE.yaml`",
    FactoryConfig: "`factory CONFIG`",
    EnvSpec: "`build SPEC`, `shell --env SPEC`, `task new --spec SPEC`, and `environment` of the two bridges",
    Task: "a line of a file of tasks",
    AutomaticConfig: "the search of `build --auto`, from Python",
    MiniSandboxDeploymentConfig: "`env.deployment` and `instances.deployment` of SWE-agent",
    MiniSandboxEnvironmentConfig: "`environment` of mini-swe-agent",
}
HEAD = """\
# Configuration

Every key that there is, from the models that check it. This page is written by `python docs/generate.py`.

A key of a model in a model has dots on a command line (`cluster.isolation=best-effort`) and is indented in YAML. What
is not named is refused, with the nearest name there is. The file of a training or fine-tuning may begin with
`extends: OTHER.yaml`, relative to itself: its keys are laid over those of the other one.
"""
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def page() -> str:
    """What docs/configuration.md should be."""
    parts, shown = [HEAD], set(ROOTS)
    for root, where in ROOTS.items():
        parts.append(f"## {root.__name__}\n\nFor {where}.\n\n{_table(root)}")
        for inner in _inner(root):
            if inner not in shown:
                shown.add(inner)
                parts.append(f"### {inner.__name__}\n\n{_table(inner)}")
    return "\n".join(parts)


def _table(model: type[BaseModel]) -> str:
    said = inspect.cleandoc(model.__doc__) if model.__doc__ and model.__doc__ != BaseModel.__doc__ else ""
    rows = [f"{_prose(said)}\n" if said else "", "| key | value | default | |", "| --- | --- | --- | --- |"]
    documented = _docstrings(model)
    for name, field in model.model_fields.items():
        cells = [f"`{field.alias or name}`", _value(field), _default(field), _prose(documented.get(name, ""))]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows).lstrip("\n") + "\n"


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """By field: the text under it, of the class nearest that has one."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
            assert isinstance(body, ast.ClassDef)
            for field, text in zip(body.body, body.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    found[ast.unparse(field.target)] = inspect.cleandoc(ast.literal_eval(text.value))
    return found


def _prose(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _value(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(each, name):g}"
        for each in field.metadata
        for name, sign in _BOUNDS.items()
        if isinstance(getattr(each, name, None), int | float)
    ]
    return ", ".join([_type(field.annotation), *bounds])


def _type(kind: Any) -> str:
    arguments = get_args(kind)
    if get_origin(kind) is Annotated:
        return _type(arguments[0])
    if get_origin(kind) is Literal:
        return " | ".join(f"`{each}`" for each in arguments)
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_type(each) for each in arguments)
    if get_origin(kind) in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if get_origin(kind) is dict:
        return f"{_type(arguments[0])} → {_type(arguments[1])}"
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    names = {type(None): "null", str: "text", int: "integer", float: "number", Path: "path", Any: "anything"}
    return names.get(kind) or {bool: "true | false"}.get(kind, str(getattr(kind, "__name__", kind)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        given = value.model_dump(mode="json", exclude_unset=True)
        return f"`{json.dumps(given, ensure_ascii=False)}`" if given else "its defaults"
    return f"`{json.dumps(value, default=str, ensure_ascii=False)}`"


def _inner(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The models of its fields, and theirs, depth first."""
    for field in model.model_fields.values():
        for kind in _models(field.annotation):
            yield kind
            yield from _inner(kind)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        yield kind
    for each in get_args(kind):
        yield from _models(each)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
