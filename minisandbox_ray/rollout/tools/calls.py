"""Calls of tools in a model's text, and what a model is told about tools.

Two notations are read: SWE-agent's ``<function=NAME><parameter=KEY>VALUE</parameter></function>``, and a JSON object in
``<tool_call>``, which is also how calls that a server returned beside the text are kept: in JSON any value can be told.
"""

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from minisandbox_ray.rollout.tools.base import Tool

Tools = Mapping[str, type[Tool]]

_OPENING = re.compile(r"<function=([^>\n]*)>|<tool_call>\s*(?=\{)")
_JSON_END = "</tool_call>"
_FUNCTION_END = "</function>"
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>")
_PARAMETER_END = "</parameter>"
_AFTER_VALUE = re.compile(r"</parameter>\s*(?:<parameter=|</function>)")
_SPACE = re.compile(r"\s*")


class CallError(ValueError):
    """A text without exactly one call that can be made; the message is for the model."""


def parse_call(text: str, tools: Tools) -> Tool | None:
    """The one call in a text; None where there is nothing that looks like one. Raises CallError."""
    calls: list[tuple[str, Any]] = []
    at = 0
    while opened := _OPENING.search(text, at):
        if opened[1] is None:
            end = text.find(_JSON_END, opened.end())
            if end < 0:
                raise CallError(f"Your tool call is not closed: {_JSON_END} is missing.")
            calls.append(_json_call(text[opened.end() : end]))
            at = end + len(_JSON_END)
        else:
            arguments, at = _arguments(text, opened.end(), opened[1])
            calls.append((opened[1].strip(), arguments))
    if not calls:
        return None
    if len(calls) > 1:
        raise CallError(
            f"Your last output included {len(calls)} tool calls! Please make sure your output includes a thought and "
            "exactly _ONE_ function call."
        )
    return _checked(*calls[0], tools)


def _json_call(text: str) -> tuple[str, Any]:
    try:
        call = json.loads(text)
        arguments = call.get("arguments", {}) if isinstance(call, dict) else None
        if isinstance(arguments, str):  # as OpenAI's protocol has them
            arguments = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise CallError(
            f"Your action could not be parsed properly: the arguments are not valid JSON ({error})."
        ) from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise CallError('Your action could not be parsed properly: expected {"name": …, "arguments": {…}}.')
    if not isinstance(arguments, dict):
        raise CallError("Your action could not be parsed properly: the arguments are no JSON object.")
    return call["name"], arguments


def _arguments(text: str, at: int, function: str) -> tuple[dict[str, str], int]:
    """Those of a function that is open at a place, and where it ends.

    A value may hold anything but its end tag, and that, too, where neither a parameter nor the function's end follows.
    """
    arguments: dict[str, str] = {}
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if text.startswith(_FUNCTION_END, at):
            return arguments, at + len(_FUNCTION_END)
        parameter = _PARAMETER.match(text, at)
        if parameter is None:
            raise CallError(_unreadable(function, text[at:]))
        ending = _AFTER_VALUE.search(text, parameter.end())
        end = ending.start() if ending else text.find(_PARAMETER_END, parameter.end())
        name = parameter[1].strip()
        if end < 0:
            raise CallError(f"Parameter `{name}` of `{function}` is not closed: {_PARAMETER_END} is missing.")
        if name in arguments:
            raise CallError(f"Parameter `{name}` of `{function}` is given twice.")
        arguments[name] = re.sub(r"\A\r?\n|\r?\n\Z", "", text[parameter.end() : end])
        at = end + len(_PARAMETER_END)


def _unreadable(name: str, rest: str) -> str:
    if not rest.strip():
        return f"The call of `{name}` is not closed: {_FUNCTION_END} is missing."
    return f"In the call of `{name}`, <parameter=…> or {_FUNCTION_END} was expected in place of `{rest[:60]}`."


def _checked(name: str, arguments: dict[str, Any], tools: Tools) -> Tool:
    known = {alias: tool for tool in tools.values() for alias in (*tool.aliases, tool.name)}
    tool = known.get(name)
    if tool is None:
        raise CallError(f"There is no tool `{name}`: call one of {', '.join(tools)}.")
    given = {key: value for key, value in arguments.items() if value is not None}
    try:
        return tool.model_validate(given)
    except ValidationError as error:
        raise CallError(f"Your call of `{tool.name}` is not right: {_complaints(error)}.") from None


def _complaints(error: ValidationError) -> str:
    said = []
    for each in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        where = ".".join(map(str, each["loc"]))
        if each["type"] == "missing":
            said.append(f"required argument `{where}` is missing")
        elif each["type"] == "extra_forbidden":
            said.append(f"unexpected argument `{where}`")
        else:
            said.append(f"`{where}`: {each['msg'].removeprefix('Value error, ')}")
    return "; ".join(said)


def write_call(name: str, arguments: Any) -> str:
    """A call as text from which `parse_call` reads it again; the arguments may be JSON in a string."""
    told = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False).replace("</", "\\u003c/")
    return f"<tool_call>\n{told}\n</tool_call>"


def description(tool: type[Tool]) -> str:
    """What its docstring says."""
    return inspect.cleandoc(tool.__doc__ or tool.name)


def schemas(tools: Tools) -> list[dict[str, Any]]:
    """The ``tools`` of a request by OpenAI's protocol."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": description(tool), "parameters": parameters(tool)},
        }
        for tool in tools.values()
    ]


def parameters(tool: type[Tool]) -> dict[str, Any]:
    """JSON schema of its parameters; an optional one is simply not required."""
    schema = tool.model_json_schema()
    properties = {}
    for name, each in schema.get("properties", {}).items():
        kinds = [kind for kind in each.pop("anyOf", []) if kind.get("type") != "null"]
        told = {key: value for key, value in each.items() if key not in ("title", "default")}
        properties[name] = {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}), **told}
    return {"type": "object", "properties": properties, "required": schema.get("required", [])}


def document(tools: Tools) -> str:
    """What a prompt says about tools that are called by XML in the text."""
    parts = ["You have access to these functions:"]
    for number, tool in enumerate(tools.values(), 1):
        lines = [f"---- BEGIN FUNCTION #{number}: {tool.name} ----", f"Description: {description(tool)}"]
        told = parameters(tool)
        lines.append("Parameters:" if told["properties"] else "No parameters are required for this function.")
        for at, (name, each) in enumerate(told["properties"].items(), 1):
            need = "required" if name in told["required"] else "optional"
            choice = f" Allowed values: {json.dumps(each['enum'])}." if "enum" in each else ""
            kind = each.get("type", "any")
            lines.append(f"  ({at}) {name} ({kind}, {need}): {each.get('description', '')}{choice}")
        parts.append("\n".join([*lines, f"---- END FUNCTION #{number} ----"]))
    return "\n\n".join([*parts, HOW_TO_CALL])


HOW_TO_CALL = """\
Call exactly one function in each answer, in this format:

<function=example_function_name>
<parameter=example_parameter_1>value_1</parameter>
<parameter=example_parameter_2>
A value that spans
several lines
</parameter>
</function>

Give every required parameter. You may reason before the call, but write nothing after it."""
"""After SWE-Gym's and OpenHands' prompts for models without function calling."""
