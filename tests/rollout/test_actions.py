import pytest

from minisandbox_ray.rollout import Command, Malformed, Submit, parse_action


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("Look around.\n\n```bash\nls -la\n```\n", "ls -la"),
        ("```sh\nls\n```", "ls"),
        ("```\nls\n```", "ls"),
        ("```bash\r\nls\r\npwd\r\n```", "ls\npwd"),
        ("```python\nprint()\n```\nand\n```bash\npython x.py\n```", "python x.py"),
        ("For example\n```\nnot this\n```\nbut\n```bash\nthis\n```", "this"),
        ("````bash\ncat > a.md <<'E'\n```\ncode\n```\nE\n````", "cat > a.md <<'E'\n```\ncode\n```\nE"),
        ("```bash\necho 'submit'\n```", "echo 'submit'"),
        ("Use `ls` here:\n```bash\ncat ``x``\n```", "cat ``x``"),
    ],
)
def test_one_block_is_a_command(text: str, command: str) -> None:
    assert parse_action(text) == Command(command)


@pytest.mark.parametrize(
    "text",
    [
        "submit",
        "  submit\n",
        "I am done.\n```bash\nsubmit\n```",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
        "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```",
    ],
)
def test_submission(text: str) -> None:
    assert parse_action(text) == Submit()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no command block"),
        ("I would submit now.", "no command block"),
        ("```python\nprint()\n```", "no command block"),
        ("```bash\nls\n```\n```bash\npwd\n```", "2 command blocks"),
        ("```bash\nls\n", "not closed"),
        ("```bash\n\n```", "empty"),
    ],
)
def test_anything_else_is_malformed(text: str, reason: str) -> None:
    action = parse_action(text)
    assert isinstance(action, Malformed)
    assert reason in action.reason
