"""Calls in a model's text, and what each command of the editor does and says in a real sandbox."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from minisandbox_ray.rollout import Command, EpisodeConfig, EpisodePool, Malformed, SandboxEnv, Submit, parse_action
from minisandbox_ray.rollout.actions import Call
from minisandbox_ray.rollout.tools import (
    DEFAULT_TOOLS,
    Machine,
    StrReplaceEditor,
    ToolError,
    document,
    load_tools,
    schemas,
    write_call,
)
from minisandbox_ray.sandbox import Sandbox, SandboxSpec
from minisandbox_ray.tasks import Task

from .play import SUBMIT, bash, kill, sandbox_init, until

OWN = "rollout.own_tool:CountLines"


def xml(name: str, **arguments: str) -> str:
    parameters = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in arguments.items())
    return f"I do this.\n<function={name}>\n{parameters}</function>"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (xml("bash", command="ls -la"), Command("ls -la")),
        (xml("bash", command="\nls\npwd\n"), Command("ls\npwd")),
        (xml("execute_bash", command="ls"), Command("ls")),
        ("<tool_call>" + xml("bash", command="ls") + "</tool_call>", Command("ls")),
        (xml("bash", command="echo '</parameter>' x"), Command("echo '</parameter>' x")),
        ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>', Command("ls")),
        ('<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>', Command("ls")),
        (write_call("bash", {"command": xml("a") + "</tool_call>"}), Command(xml("a") + "</tool_call>")),
        (xml("submit"), Submit()),
        (xml("finish"), Submit()),
        ("submit", Submit()),
        (SUBMIT, Submit()),
        (bash("ls"), Command("ls")),
        (
            xml("str_replace_editor", command="view", path="/testbed", view_range="[1, -1]"),
            Call(StrReplaceEditor(command="view", path="/testbed", view_range=[1, -1])),
        ),
        (
            xml("str_replace_editor", command="insert", path="/a", insert_line="3", new_str="\n  x\n"),
            Call(StrReplaceEditor(command="insert", path="/a", insert_line=3, new_str="  x")),
        ),
    ],
)
def test_one_call_is_an_action(text: str, action: object) -> None:
    assert parse_action(text, "tools") == action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I think that I will look around.", "did not use any tool calls"),
        ("```\nls\n```", "did not use any tool calls"),
        (xml("bash", command="ls") + xml("bash", command="pwd"), "2 tool calls"),
        (xml("run", command="ls"), "no tool `run`: call one of bash, str_replace_editor, submit"),
        (xml("bash"), "required argument `command` is missing"),
        (xml("bash", command="ls", cwd="/"), "unexpected argument `cwd`"),
        (xml("bash", command=""), "`command`"),
        ("<function=bash><parameter=command>ls", "</parameter> is missing"),
        ("<function=bash><parameter=command>ls</parameter>", "</function> is missing"),
        ("<function=bash>ls</function>", "was expected in place of `ls"),
        ("<function=bash><parameter=command>a</parameter><parameter=command>b</parameter></function>", "given twice"),
        (xml("str_replace_editor", command="delete", path="/a"), "`command`: Input should be 'view'"),
        (
            xml("str_replace_editor", command="view", path="/a", view_range="1-2"),
            "must be in the format [<start>, <end>]",
        ),
        (xml("str_replace_editor", command="insert", path="/a", insert_line="three"), "`insert_line`"),
        ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}}', "not closed"),
        ('<tool_call>{"name": "bash", "arguments": {</tool_call>', "not valid JSON"),
        ('<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>', "not valid JSON"),
        ('<tool_call>{"name": "bash", "arguments": [1]}</tool_call>', "no JSON object"),
        ('<tool_call>{"command": "ls"}</tool_call>', 'expected {"name"'),
        ('<tool_call>{"name": "bash", "arguments": {"command": "\\ud800"}}</tool_call>', "`command`"),
        ("<tool_call>" + '{"a":' * 100_000 + "</tool_call>", "not valid JSON"),
    ],
)
def test_anything_else_is_told_how_to_call(text: str, reason: str) -> None:
    action = parse_action(text, "tools")
    assert isinstance(action, Malformed)
    assert reason in action.reason


def test_what_models_are_told() -> None:
    tools = load_tools(DEFAULT_TOOLS)
    told = {each["function"]["name"]: each["function"]["parameters"] for each in schemas(tools)}
    assert told["bash"]["required"] == ["command"]
    assert told["submit"] == {"type": "object", "properties": {}, "required": []}
    editor = told["str_replace_editor"]
    assert editor["required"] == ["command", "path"]
    assert editor["properties"]["command"]["enum"] == ["view", "create", "str_replace", "insert", "undo_edit"]
    kinds = {name: each["type"] for name, each in editor["properties"].items()}
    assert (kinds["insert_line"], kinds["view_range"], kinds["old_str"]) == ("integer", "array", "string")
    assert editor["properties"]["view_range"]["items"] == {"type": "integer"}
    json.dumps(told)
    text = document(tools)
    assert "(2) path (string, required): Absolute path" in text
    assert "<function=example_function_name>" in text


def test_configurations() -> None:
    assert EpisodeConfig.model_validate({"tools": ["submit", OWN]}).tools == ("submit", OWN)
    for fields, said in [
        ({"tools": ["submit", "edit"]}, "no tool edit"),
        ({"tools": ["bash"]}, "no episode can be ended"),
        ({"tools": ["submit", "submit"]}, "two tools are called submit"),
        ({"tools": ["submit", "json:JSONDecoder"]}, "is no tool"),
        ({"tools": ["submit", "no.such:Tool"]}, "No module"),
        ({"observation_template": "{{ outptu }}"}, "outptu"),
        ({"observation_template": "{% if %}"}, "template is none"),
        ({"action_format": "xml"}, "action_format"),
    ]:
        with pytest.raises(ValidationError, match=said):
            EpisodeConfig.model_validate(fields)


@pytest.fixture(scope="module")
def sandbox(sandboxes: None) -> Iterator[Sandbox]:
    with Sandbox(SandboxSpec()) as sandbox:
        yield sandbox


class Editor:
    """An episode's editor, at files of one test."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._machine = Machine(sandbox, 10_000, 30)

    def __call__(self, command: str, path: str, **arguments: object) -> str:
        tool = StrReplaceEditor.model_validate({"command": command, "path": path, **arguments})
        return tool.use(self._machine)

    def refused(self, command: str, path: str, **arguments: object) -> str:
        with pytest.raises(ToolError) as caught:
            self(command, path, **arguments)
        return str(caught.value)

    def cut_at(self, chars: int) -> None:
        self._machine.chars = chars


@pytest.fixture
def editor(sandbox: Sandbox) -> Editor:
    sandbox.run("rm -rf /tmp/* /tmp/.[a-z]*; mkdir -p /tmp/d/e/f /tmp/d/.git; touch /tmp/d/b /tmp/d/a /tmp/d/e/f/deep")
    return Editor(sandbox)


def test_view(editor: Editor) -> None:
    editor.sandbox.write_file("/tmp/f.py", b"one\n\ttwo\nthree\n")
    start = "Here's the result of running `cat -n` on /tmp/f.py:\n"
    assert editor("view", "/tmp/f.py") == f"{start}     1\tone\n     2\t\ttwo\n     3\tthree\n     4\t\n"
    assert editor("view", "/tmp/f.py", view_range=[2, 3]) == f"{start}     2\t\ttwo\n     3\tthree\n"
    assert editor("view", "/tmp/f.py", view_range=[3, -1]) == f"{start}     3\tthree\n     4\t\n"
    assert editor.refused("view", "/tmp/f.py", view_range=[2]).startswith(
        "Invalid `view_range`. It should be a list of two"
    )
    assert "Its first element `5` should be within the range of lines of the file: [1, 4]" in editor.refused(
        "view", "/tmp/f.py", view_range=[5, 6]
    )
    assert "Its second element `9` should be smaller" in editor.refused("view", "/tmp/f.py", view_range=[1, 9])
    assert "should be larger or equal than its first `3`" in editor.refused("view", "/tmp/f.py", view_range=[3, 2])
    assert editor("view", "/tmp/d") == (
        "Here's the files and directories up to 2 levels deep in /tmp/d, excluding hidden items:\n"
        "/tmp/d\n/tmp/d/a\n/tmp/d/b\n/tmp/d/e\n/tmp/d/e/f\n"
    )
    assert "not allowed when `path` points to a directory" in editor.refused("view", "/tmp/d", view_range=[1, 2])


def test_paths(editor: Editor) -> None:
    assert editor.refused("view", "f.py") == (
        "The path f.py is not an absolute path, it should start with `/`. Maybe you meant "
        f"{editor.sandbox.spec.cwd.rstrip('/')}/f.py?"
    )
    for command in ("view", "undo_edit"):
        assert "/tmp/no does not exist. Please provide a valid path." in editor.refused(command, "/tmp/no")
    assert "does not exist" in editor.refused("str_replace", "/tmp/no", old_str="a")
    assert "only the `view` command can be used on directories" in editor.refused("str_replace", "/tmp/d", old_str="a")
    assert "not a regular file" in editor.refused("view", "/dev/null")
    assert "not a regular file" in editor.refused("view", "/proc/1/environ")
    assert "NUL" in editor.refused("view", "/tmp/\0")


def test_links_are_those_of_the_sandbox(editor: Editor, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    editor.sandbox.run(
        f"ln -s {secret} /tmp/out; ln -s {tmp_path} /tmp/up; echo inside > /tmp/real; ln -s real /tmp/link"
    )
    assert "does not exist" in editor.refused("view", "/tmp/out")
    assert "does not exist" in editor.refused("view", "/tmp/up/secret")
    assert "parent directory /tmp/up does not exist" in editor.refused("create", "/tmp/up/new", file_text="x")
    editor("str_replace", "/tmp/link", old_str="inside", new_str="still inside")
    assert editor.sandbox.run("cat /tmp/real; readlink /tmp/link").output.split("\n")[:2] == ["still inside", "real"]
    assert secret.read_text() == "of the host"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]


def test_create(editor: Editor) -> None:
    assert editor("create", "/tmp/new", file_text="a\nb") == "File created successfully at: /tmp/new"
    assert editor.sandbox.read_file("/tmp/new") == b"a\nb"
    assert editor.refused("create", "/tmp/new", file_text="c") == (
        "File already exists at: /tmp/new. Cannot overwrite files using command `create`."
    )
    assert editor.refused("create", "/tmp/other") == "Parameter `file_text` is required for command: create"
    assert "The parent directory /tmp/no does not exist" in editor.refused("create", "/tmp/no/new", file_text="")
    assert "larger than 8 MiB" in editor.refused("create", "/tmp/big", file_text="x" * (9 << 20))
    assert "Ran into" in editor.refused("create", "/proc/new", file_text="x")
    assert editor.sandbox.run("ls /tmp").output.split() == ["d", "new"]


def test_str_replace(editor: Editor) -> None:
    lines = [f"line {n}" for n in range(1, 13)]
    editor.sandbox.write_file("/tmp/f", "\n".join(lines).encode())
    assert editor("str_replace", "/tmp/f", old_str="line 7\n", new_str="seven\nand\n") == (
        "The file /tmp/f has been edited. Here's the result of running `cat -n` on a snippet of /tmp/f:\n"
        "     2\tline 2\n     3\tline 3\n     4\tline 4\n     5\tline 5\n     6\tline 6\n     7\tseven\n     8\tand\n"
        "     9\tline 8\n    10\tline 9\n    11\tline 10\n    12\tline 11\n"
        "Review the changes and make sure they are as expected. Edit the file again if necessary."
    )
    assert editor.sandbox.read_file("/tmp/f").split(b"\n")[5:9] == [b"line 6", b"seven", b"and", b"line 8"]
    assert editor.refused("str_replace", "/tmp/f", old_str="line") == (
        "No replacement was performed. Multiple occurrences of old_str `line` in lines "
        "[1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13]. Please ensure it is unique"
    )
    assert "old_str `nothing` did not appear verbatim in /tmp/f." in editor.refused(
        "str_replace", "/tmp/f", old_str="nothing", new_str="x"
    )
    assert "is the same as new_str `seven`" in editor.refused("str_replace", "/tmp/f", old_str="seven", new_str="seven")
    assert "Parameter `old_str` is required" in editor.refused("str_replace", "/tmp/f")
    assert "`old_str` is empty" in editor.refused("str_replace", "/tmp/f", old_str="")
    editor("str_replace", "/tmp/f", old_str="and\n")
    assert b"and" not in editor.sandbox.read_file("/tmp/f")


def test_what_is_not_edited_stays_as_it_is(editor: Editor) -> None:
    editor.sandbox.write_file("/tmp/f", b"a:\r\n\tcaf\xe9\r\nb\r\n", 0o755)
    editor("str_replace", "/tmp/f", old_str="a:\n", new_str="c:\nd\n")
    assert editor.sandbox.read_file("/tmp/f") == b"c:\r\nd\r\n\tcaf\xe9\r\nb\r\n"
    editor("insert", "/tmp/f", insert_line=1, new_str="new")
    assert editor.sandbox.read_file("/tmp/f") == b"c:\r\nnew\r\nd\r\n\tcaf\xe9\r\nb\r\n"
    assert "\tcaf\ufffd\n" in editor("view", "/tmp/f")
    assert editor.sandbox.run("stat -c %a /tmp/f").output.strip() == "755"


def test_insert(editor: Editor) -> None:
    editor.sandbox.write_file("/tmp/f", b"a\nb\nc")
    assert editor("insert", "/tmp/f", insert_line=1, new_str="x\ny") == (
        "The file /tmp/f has been edited. Here's the result of running `cat -n` on a snippet of the edited file:\n"
        "     1\ta\n     2\tx\n     3\ty\n     4\tb\n     5\tc\n"
        "Review the changes and make sure they are as expected (correct indentation, no duplicate lines, etc). Edit "
        "the file again if necessary."
    )
    editor("insert", "/tmp/f", insert_line=0, new_str="top")
    editor("insert", "/tmp/f", insert_line=6, new_str="end")
    assert editor.sandbox.read_file("/tmp/f") == b"top\na\nx\ny\nb\nc\nend"
    assert "It should be within the range of lines of the file: [0, 7]" in editor.refused(
        "insert", "/tmp/f", insert_line=8, new_str="x"
    )
    assert "Parameter `insert_line` is required" in editor.refused("insert", "/tmp/f", new_str="x")
    assert "Parameter `new_str` is required" in editor.refused("insert", "/tmp/f", insert_line=1)


def test_undo_edit(editor: Editor) -> None:
    editor.sandbox.write_file("/tmp/f", b"a")
    editor.sandbox.write_file("/tmp/g", b"other")
    assert editor.refused("undo_edit", "/tmp/f") == "No edit history found for /tmp/f."
    editor("str_replace", "/tmp/f", old_str="a", new_str="b")
    editor("str_replace", "/tmp/g", old_str="other", new_str="o")
    editor("insert", "/tmp/f", insert_line=0, new_str="c")
    assert editor("undo_edit", "/tmp/f") == (
        "Last edit to /tmp/f undone successfully. Here's the result of running `cat -n` on /tmp/f:\n     1\tb\n"
    )
    editor("undo_edit", "/tmp/f")
    assert editor.sandbox.read_file("/tmp/f") == b"a"
    assert "No edit history" in editor.refused("undo_edit", "/tmp/f")
    assert editor.sandbox.read_file("/tmp/g") == b"o"


def test_long_answers_are_clipped(editor: Editor) -> None:
    editor.sandbox.run("seq 100000 > /tmp/f; cd /tmp/d; touch $(seq 9000); head -c 9M /dev/zero > /tmp/big")
    editor.cut_at(2000)
    for path in ("/tmp/f", "/tmp/d"):
        text = editor("view", path)
        assert 1000 < len(text) <= 2000
        assert "<response clipped>" in text
    assert "larger than 8 MiB" in editor.refused("view", "/tmp/big")


def test_a_tool_of_one_s_own(editor: Editor) -> None:
    editor.sandbox.write_file("/tmp/f", b"a\nb\n")
    action = parse_action(xml("count_lines", path="/tmp/f"), "tools", ("submit", OWN))
    assert isinstance(action, Call)
    assert action.tool.use(Machine(editor.sandbox, 100, 1)) == "2"


def test_an_episode_with_tools(pool: EpisodePool, task: Task) -> None:
    config = EpisodeConfig(action_format="tools", reminder_from=3, max_turns=9)
    with SandboxEnv(pool, config) as env:
        env.reset(task)
        observation, *_ = env.step(xml("bash", command="cat calc.py"))
        assert observation == "<returncode>0</returncode>\n<output>\ndef add(a, b):\n    return a - b\n</output>"
        observation, *_, info = env.step("I only think.")
        assert "exactly _ONE_ function call" in observation
        edit = xml(
            "str_replace_editor", command="str_replace", path="/testbed/calc.py", old_str="a - b", new_str="a + b"
        )
        observation, _, terminated, _, info = env.step(edit)
        assert "     2\t    return a + b\n" in observation
        assert (terminated, info["tool"], info["tool_failed"]) == (False, "str_replace_editor", False)
        observation, *_, info = env.step(edit)
        assert "did not appear verbatim" in observation
        assert (info["tool_failed"], info.get("exit_code")) == (True, None)
        env.step(xml("str_replace_editor", command="undo_edit", path="/testbed/calc.py"))
        observation, *_ = env.step(edit)
        assert observation.endswith("Turns left: 3.")
        _, reward, terminated, _, info = env.step(xml("submit"))
    assert (reward, terminated, info["failure_owner"]) == (1.0, True, None)


def test_played_again_elsewhere_the_editor_remembers(pool: EpisodePool, task: Task) -> None:
    edit = {"path": "/testbed/calc.py", "old_str": "a - b", "new_str": "a + b"}
    with SandboxEnv(pool, EpisodeConfig(action_format="tools")) as env:
        env.reset(task)
        seen = env.step(xml("str_replace_editor", command="str_replace", **edit))[0]
        assert "a + b" in seen
        env.step(write_call("bash", {"command": "sleep 1000.77 & disown"}))
        kill(sandbox_init, "1000.77")
        observation, *_, info = env.step(xml("str_replace_editor", command="undo_edit", path="/testbed/calc.py"))
        assert "a - b" in observation
        assert info["replay"] == {"count": 1, "turns": [3], "diverged_turns": []}
    assert until(lambda: sandbox_init("1000.77") == 0)


def test_a_template_for_observations(pool: EpisodePool, task: Task) -> None:
    template = "{{ output }}|{{ exit_code }}|{{ notes|length }}|{{ turns_left }}|{{ reminder }}"
    with SandboxEnv(pool, EpisodeConfig(observation_template=template, max_turns=5)) as env:
        env.reset(task)
        assert env.step(bash("printf '{{ x }}'; exit 3"))[0] == "{{ x }}|3|1|4|Turns left: 4."
