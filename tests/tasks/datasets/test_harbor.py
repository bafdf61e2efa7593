from pathlib import Path

import pytest

from minisandbox_ray.errors import TaskError
from minisandbox_ray.tasks.datasets import read_dataset
from minisandbox_ray.tasks.datasets.harbor import read_reward

TOML = """
version = "1.0"
[task]
name = "octo/hello"
[metadata]
difficulty = "easy"
[verifier]
timeout_sec = 120.0
env = { FAST = "${FAST:-1}" }
[agent]
timeout_sec = 60
[environment]
build_timeout_sec = 30.0
cpus = 2
memory = "2G"
storage_mb = 512
allow_internet = false
env = { GREETING = "hi" }
"""
DOCKERFILE = """\
# a comment
FROM --platform=linux/amd64 docker.io/library/python:3.12-slim-bookworm AS base

ENV ROOT=/app MODE="two words" \\
    # between continued lines
    PRICE='$5' PATH=/app/bin:$PATH
ENV OLD the whole rest
WORKDIR $ROOT
WORKDIR sub
RUN apt-get update && \\
    apt-get install -y curl
RUN ["echo", "a b"]
RUN <<EOF
set -e
touch $ROOT/x
EOF
RUN cat > y <<'END'
FROM nothing
END
COPY . .
COPY data/*.txt ${ROOT}/data/
COPY data/a.txt /b.txt
"""


def task_folder(root: Path, name: str, dockerfile: str = DOCKERFILE, toml: str = TOML) -> Path:
    folder = root / name
    for path, text in {
        "task.toml": toml,
        "instruction.md": "Say hello.\n",
        "environment/Dockerfile": dockerfile,
        "environment/data/a.txt": "a",
        "environment/data/b.txt": "b",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "echo hello\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_a_task_folder_becomes_a_task(tmp_path: Path) -> None:
    folder = task_folder(tmp_path / "tasks", "hello")
    loaded = read_dataset(tmp_path)
    assert (loaded.format, loaded.refused) == ("harbor", [])
    (task,) = loaded.tasks
    assert read_dataset(folder).tasks == [task]
    assert (task.instance_id, task.repo, task.problem_statement) == ("hello", "octo/hello", "Say hello.\n")
    assert task.graded_by == "script" and task.model_extra == {"metadata": {"difficulty": "easy"}}
    script = task.script
    assert script is not None
    assert (script.folder, script.base, script.python) == (str(folder), "python:3.12-slim-bookworm", "3.12")
    assert (script.workdir, script.test_script, script.solution) == ("/app/sub", "tests/test.sh", "solution/solve.sh")
    assert (script.cpus, script.memory_mib, script.disk_mib, script.network) == (2, 2048, 512, False)
    assert (script.agent_seconds, script.verifier_seconds, script.build_seconds) == (60, 120, 30)
    assert script.verifier_variables == {"FAST": "1"}
    assert script.variables == {
        "ROOT": "/app",
        "MODE": "two words",
        "PRICE": "$5",
        "PATH": "/app/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "OLD": "the whole rest",
        "GREETING": "hi",
    }
    assert [each.command for each in script.instructions if each.kind == "run"] == [
        "apt-get update &&     apt-get install -y curl",
        "echo 'a b'",
        "set -e\ntouch $ROOT/x",
        "cat > y <<'END'\nFROM nothing\nEND",
    ]
    assert [(each.sources, each.target) for each in script.instructions if each.kind == "copy"] == [
        (["."], "/app/sub/"),
        (["data/a.txt", "data/b.txt"], "/app/data/"),
        (["data/a.txt"], "/b.txt"),
    ]
    assert {each.workdir for each in script.instructions} == {"/app/sub"}
    hidden = task.hide_gold().script
    assert hidden is not None and hidden.solution == ""


def test_the_content_hash_covers_the_environment_and_nothing_else(tmp_path: Path) -> None:
    folder = task_folder(tmp_path, "hello")

    def content() -> str:
        script = read_dataset(folder).tasks[0].script
        assert script is not None
        return script.content

    before = content()
    (folder / "tests/test.sh").write_text("exit 1\n")
    assert content() == before
    (folder / "environment/data/a.txt").write_text("other")
    assert content() != before


@pytest.mark.parametrize(
    ("dockerfile", "reason"),
    [
        ("FROM alpine:3.20\n", "line 1: image alpine:3.20 is none of python:3.X, debian, ubuntu"),
        ("FROM python:3.12-alpine\n", "line 1: image python:3.12-alpine: only Debian's"),
        ("FROM python\n", "line 1: image python: only Debian's"),
        ("FROM ghcr.io/octo/python:3.12\n", "line 1: image ghcr.io/octo/python:3.12 is none"),
        ("ARG TAG=3\nFROM debian:$TAG\n", "line 1: ARG before FROM"),
        ("FROM debian:12 AS a\nFROM debian:12\n", "line 2: a second FROM"),
        ("FROM debian:12\nUSER me\n", "line 2: 'USER' is beyond"),
        ("FROM debian:12\nADD a b\n", "line 2: 'ADD' is beyond"),
        ("FROM debian:12\nENTRYPOINT x\n", "line 2: 'ENTRYPOINT' is beyond"),
        (
            "FROM debian:12\n\nRUN --mount=type=cache,target=/x true\n",
            "line 3: RUN --mount=type=cache,target=/x: options",
        ),
        ("FROM debian:12\nCOPY --from=0 a b\n", "line 2: COPY --from=0: options"),
        ("FROM debian:12\nCOPY <<E /x\na\nE\n", "line 2: COPY <<E: options"),
        ("FROM debian:12\nCOPY ../tests /x\n", "line 2: COPY ../tests: outside"),
        ("FROM debian:12\nCOPY none /x\n", "line 2: COPY none: there is no such file"),
        ("FROM debian:12\nCOPY link /x\n", "line 2: COPY link: leads outside"),
        ("FROM debian:12\nCOPY data/*.txt /x\n", "several sources want a target"),
        ("FROM debian:12\nRUN <<E\ntrue\n", "line 2: here-document E does not end"),
        ("FROM debian:12\nRUN <<E\n#!/usr/bin/python3\nE\n", "line 2: a here-document for another interpreter"),
        ('FROM debian:12\nENV A="b\n', "line 2: a quote that does not end"),
        ("# escape=`\nFROM debian:12\n", "another escape character"),
        ("# nothing\n", "has no FROM"),
    ],
)
def test_what_a_dockerfile_has_beyond_is_refused_by_line(tmp_path: Path, dockerfile: str, reason: str) -> None:
    task_folder(tmp_path, "good")
    bad = task_folder(tmp_path, "bad", dockerfile)
    (bad / "environment/link").symlink_to("../tests/test.sh")
    loaded = read_dataset(tmp_path)
    assert [task.instance_id for task in loaded.tasks] == ["good"]
    (refusal,) = loaded.refused
    assert (refusal.instance_id, refusal.field) == ("bad", "environment/Dockerfile")
    assert reason in refusal.reason and "\n" not in refusal.reason


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ("[environment]\ngpus = 1", "environment.gpus"),
        ('[environment]\nos = "windows"', "environment.os"),
        ('[environment]\nenv = { KEY = "${KEY}" }', "environment.env"),
        ('[verifier]\nenv = { KEY = "${KEY}" }', "verifier.env"),
        ('[verifier]\nenvironment_mode = "separate"', "verifier.environment_mode"),
        ('[verifier]\nuser = "judge"', "verifier.user"),
        ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec"),
        ('[environment]\nmemory = "much"', "environment.memory"),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["pypi.org"]', "network_mode"),
        ('[[steps]]\nname = "one"', "steps"),
        ("environment = 3", "environment"),
        ("[", "task.toml"),
    ],
)
def test_what_a_task_file_has_beyond_is_refused_by_key(tmp_path: Path, lines: str, field: str) -> None:
    task_folder(tmp_path, "bad", toml=lines)
    (refusal,) = read_dataset(tmp_path).refused
    assert refusal.field.startswith("task.toml") and refusal.field.endswith(field)


def test_missing_files_and_other_forms_are_refused(tmp_path: Path) -> None:
    for name, missing in (("a", "instruction.md"), ("b", "tests/test.sh"), ("c", "environment/Dockerfile")):
        (task_folder(tmp_path, name) / missing).unlink()
    (task_folder(tmp_path, "d") / "environment/docker-compose.yaml").write_text("")
    (task_folder(tmp_path, "e") / "environment/.dockerignore").write_text("data")
    (tmp_path / "f").mkdir()
    (tmp_path / "f/task.yaml").write_text("instruction: x\n")
    escape = task_folder(tmp_path, "g") / "instruction.md"
    escape.unlink()
    escape.symlink_to("/etc/passwd")
    assert [(each.instance_id, each.field) for each in read_dataset(tmp_path).refused] == [
        ("a", "instruction.md"),
        ("b", "tests/test.sh"),
        ("c", "environment/Dockerfile"),
        ("d", "environment/docker-compose.yaml"),
        ("e", "environment/Dockerfile"),
        ("f", "task.yaml"),
        ("g", "instruction.md"),
    ]


def test_a_base_image_alone_is_enough(tmp_path: Path) -> None:
    folder = task_folder(tmp_path, "a", toml='[environment]\ndocker_image = "ubuntu:24.04"\n')
    (folder / "environment/Dockerfile").unlink()
    script = read_dataset(tmp_path).tasks[0].script
    assert script is not None and (script.base, script.python, script.network) == ("ubuntu:24.04", "", True)


@pytest.mark.parametrize(
    ("files", "reward"),
    [
        ({"reward.txt": b" 0.5\n"}, 0.5),
        ({"reward.json": b'{"reward": 1, "speed": 0.2}', "reward.txt": b"0"}, 1.0),
        ({"reward.json": b'{"a": 1, "b": 0}'}, 0.5),
        ({"reward.json": b"0.25"}, 0.25),
        ({}, None),
        ({"reward.txt": b""}, None),
        ({"reward.txt": b"nan"}, None),
        ({"reward.json": b"{}"}, None),
        ({"reward.json": b'{"reward": "1"}'}, None),
        ({"reward.json": b'{"reward": 1e999}'}, None),
        ({"reward.json": b'{"reward": 1' + b"0" * 400 + b"}"}, None),
        ({"reward.json": b"{"}, None),
    ],
)
def test_the_reward_is_read_as_harbor_does(files: dict[str, bytes], reward: float | None) -> None:
    if reward is not None:
        assert read_reward(files) == reward
        return
    with pytest.raises(TaskError, match="/logs/verifier/reward") as caught:
        read_reward(files)
    assert "\n" not in str(caught.value)
