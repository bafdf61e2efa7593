from dataclasses import replace

from minisandbox_ray.rollout import Malformed
from minisandbox_ray.rollout.observations import cut, of_command, of_malformed
from minisandbox_ray.sandbox import CommandResult

RESULT = CommandResult(
    output="hello\n",
    exit_code=3,
    timed_out=False,
    truncated=False,
    restarted=False,
    limit=None,
    cwd="/testbed",
    seconds=1.0,
    output_bytes=6,
)


def test_command_shows_status_output_and_turns() -> None:
    assert of_command(RESULT, 1000, 4) == "<returncode>3</returncode>\n<output>\nhello\n</output>\nTurns left: 4."
    assert of_command(RESULT, 1000, 0).endswith("This was the last turn.")


def test_what_happened_besides_is_said() -> None:
    text = of_command(replace(RESULT, timed_out=True, restarted=True, limit="memory"), 1000, 1)
    assert "took too long" in text
    assert "restarted" in text
    assert "out of memory" in text


def test_long_output_keeps_head_and_tail() -> None:
    text = cut("a" * 500 + "b" * 500, 200)
    assert text == "a" * 100 + "\n[... 800 characters cut ...]\n" + "b" * 100
    assert cut("short", 200) == "short"


def test_malformed_says_how_to_write_one() -> None:
    text = of_malformed(Malformed("Found no command block."), 2)
    assert "Found no command block." in text
    assert "```bash\n" in text
    assert "submit" in text
