"""The picture and the line at the end of a run."""

from pathlib import Path

from minisandbox_ray.telemetry import final_line, write_report


def _rows(rewards: list[float]) -> list[dict]:
    return [
        {
            "step": step,
            "reward/avg_raw_reward": reward,
            "environment/resolved_mean": reward,
            "environment/episodes": 10,
            "environment/grade_cache_hits": 4,
            "environment/failures": 1,
            "environment/step_seconds_mean": 0.5,
            "timing/step": 6.0,
        }
        for step, reward in enumerate(rewards, 1)
    ]


def test_the_final_line_tells_first_and_last_rewards():
    line = final_line(_rows([0.0, 0.1, 0.5, 0.8, 0.9, 1.0, 1.0, 1.0]))
    assert line.startswith("mean reward 0.050 (first 2 steps) -> 0.940 (last 5 steps) in 8 steps, 80 episodes ")
    assert line.endswith("(32 grades from cache, 8 failed), 0.8 min")


def test_the_final_line_tells_what_was_resolved_where_the_reward_does_not():
    rows = [{**row, "reward/avg_raw_reward": 0.5} for row in _rows([0.0, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0])]
    assert final_line(rows).endswith("; resolved 0.050 -> 0.020")


def test_the_report_is_a_picture(tmp_path: Path):
    write_report(_rows([0.0, 0.5, 1.0]), tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
