"""The page about runs: its figures are those of the runs' files, and what an agent wrote is only ever shown."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minisandbox_ray.cli.main import main
from minisandbox_ray.report.text import shown
from minisandbox_ray.rollout.results import make_report
from minisandbox_ray.rollout.trajectory import Trajectory, Turn

from .browser import Browser, find_chromium

ATTACK = (
    "</script><script>window.hacked = 1</script><img src=http://127.0.0.1:9/x onerror='window.hacked = 1'><!--<script>"
)


def trajectory(name: str, sample: int, resolved: bool = False, **fields: Any) -> Trajectory:
    made: dict[str, Any] = {
        "instance_id": name,
        "sample": sample,
        "seed": sample,
        "environment": "",
        "policy": "gold",
        "repo": name.partition("__")[0],
        "prompt": "It adds wrongly.",
        "turns": [Turn(action="```bash\nls\n```", observation="calc.py", exit_code=0, seconds=0.25)],
        "diff": "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a - b\n+a + b\n",
        "reward": float(resolved),
        "resolved": resolved,
        "graded": {"tests": {"t.py::a": "passed", "t.py::b": "failed"}, "reason": "t.py::b failed", "log": "1 failed"},
        "failure_owner": None,
        "failure": "",
        "replay": None,
        "seconds": {"total": 2.0, "wait": 0.5, "reset": 0.02, "policy": 0.1, "command": 0.3, "diff": 0.1, "grade": 0.9},
        "node": "10.0.0.1",
        "versions": {"minisandbox_ray": "1"},
    }
    return Trajectory.model_validate(made | fields)


def write_batch(directory: Path, rows: list[Trajectory], *, finished: bool = True) -> Path:
    directory.mkdir()
    (directory / "trajectories.jsonl").write_bytes(b"".join(row.line() for row in rows))
    if finished:
        report = make_report({row.instance_id for row in rows} | {"never_played"}, rows)
        (directory / "report.json").write_text(json.dumps(report))
    return directory


def write_training(directory: Path, rewards: list[float]) -> Path:
    directory.mkdir()
    rows = [
        {
            "step": step,
            "reward/avg_raw_reward": reward,
            "reward/avg_pass_at_4": min(1.0, 2 * reward),
            "environment/resolved_mean": reward,
            "environment/episodes": 16,
            "environment/failures": step % 2,
            "environment/failures_cluster": step % 2,
            "environment/reward/calc": reward,
            "timing/step": 30.0,
            **{f"environment/{part}_seconds_mean": 0.1 * step for part in ("wait", "reset", "model", "step", "grade")},
            **{f"environment/reset_seconds_{name}": 0.01 * step for name in ("p50", "p90", "max")},
        }
        for step, reward in enumerate(rewards, 1)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def report(output: Path, *runs: Path) -> dict[str, Any]:
    """The page's data."""
    assert main(["report", *map(str, runs), "--output", str(output)]) == 0
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', output.read_text(), re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def chart(data: dict[str, Any], title: str) -> dict[str, Any]:
    return next(each for each in data["charts"] if each["title"] == title)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["report", *map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1), said
    return said.err


def test_figures_of_rollouts_are_those_of_their_files(tmp_path: Path) -> None:
    rows = [trajectory("calc__1", sample, resolved=sample == 0) for sample in range(4)]
    rows += [trajectory("calc__2", 0, failure_owner="agent", failure="killed itself")]
    rows += [trajectory("text__1", 0, failure_owner="cluster", failure="node lost", graded=None, turns=[])]
    rows += [trajectory("text__1", 0, resolved=True)]  # tried again: the last line counts
    rows += [trajectory("text__2", 0, failure_owner="sandbox", failure="died", seconds={"total": 1.0})]
    directory = write_batch(tmp_path / "batch", rows)
    data = report(tmp_path / "page.html", directory)
    told = json.loads((directory / "report.json").read_text())
    run = data["runs"][0]
    assert run["pass_at_k"] == told["pass_at_k"]
    assert (run["tasks"], run["resolved"]) == (told["total_instances"], told["resolved_instances"])
    assert (run["episodes"], run["failed"]) == (7, 2)
    assert chart(data, "pass@k")["series"][0]["points"] == [[int(k), rate] for k, rate in told["pass_at_k"].items()]
    assert chart(data, "Failures by owner")["rows"][0]["parts"] == {"agent": 1, "sandbox": 1}
    parts = chart(data, "Where time of rollouts goes")["rows"][0]["parts"]
    wanted = {"wait": 0.5, "reset": 0.02, "model": 0.1, "step": 0.3, "grade": 1.0, "other": 0.08}
    assert parts == pytest.approx(wanted)
    latencies = chart(data, "Reset latency")
    assert sum(count for _, _, count in latencies["bins"]) == 6
    assert latencies["marks"]["p50"] == 0.02
    by_name = {each["repository"]: each for each in data["repositories"]}
    assert (by_name["calc"]["episodes"], by_name["calc"]["resolved"]) == (5, 0.2)
    assert (by_name["text"]["tasks"], by_name["text"]["resolved"], by_name["text"]["failed"]) == (2, 1.0, 1)
    first = data["episodes"][0]
    assert first["full"]["actions"][0]["action"] == rows[0].turns[0].action
    assert first["full"]["diff"] == rows[0].diff
    assert first["full"]["tests"][0] == ["t.py::b", "failed"]


def test_figures_of_seeds_are_those_of_their_metrics(tmp_path: Path) -> None:
    seeds = [
        write_training(tmp_path / name, rewards) for name, rewards in (("a", [0.0, 0.5]), ("b", [0.25, 0.75, 1.0]))
    ]
    (seeds[0] / "evaluations").mkdir()
    (seeds[0] / "evaluations" / "step-2.jsonl").write_bytes(trajectory("held__1", 0).line())
    data = report(tmp_path / "page.html", *seeds)
    lines = {each["name"]: each["points"] for each in chart(data, "Reward")["series"]}
    assert lines == {
        "a": [[1, 0.0], [2, 0.5]],
        "b": [[1, 0.25], [2, 0.75], [3, 1.0]],
        "mean of 2 runs": [[1, 0.125], [2, 0.625]],
    }
    assert chart(data, "pass@4 of the step's groups")["series"][1]["points"] == [[1, 0.5], [2, 1.0], [3, 1.0]]
    assert chart(data, "Where rollout time goes")["series"][0]["values"] == pytest.approx([0.1, 0.2, 0.3])
    assert chart(data, "Failures by step")["series"] == [{"name": "cluster", "values": [2, 0, 1]}]
    assert [(run["steps"], run["episodes"], run["last_reward"]) for run in data["runs"]] == [
        (2, 32, 0.25),
        (3, 48, 2 / 3),
    ]
    assert [each["evaluation"] for each in data["episodes"]] == ["step-2"]
    assert data["repositories"][1] == {"run": "b", "repository": "calc", "reward": 2 / 3}


def test_a_run_that_still_runs(tmp_path: Path) -> None:
    directory = write_batch(tmp_path / "batch", [trajectory("calc__1", 0, resolved=True)], finished=False)
    with (directory / "trajectories.jsonl").open("ab") as torn:
        torn.write(trajectory("calc__2", 0).line()[:99])
    training = write_training(tmp_path / "training", [0.0, 0.5])
    with (training / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "reward/avg_raw_reward": NaN}\n{"step": 4, "rew')
    rows = [{"time": 1e9 + at, "slots": 4, "used": at, "waiting": 0, "store_bytes": at << 30} for at in range(3)]
    (directory / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = report(tmp_path / "page.html", directory, training)
    assert (data["runs"][0]["running"], data["runs"][0]["resolved"], data["runs"][0]["tasks"]) == (True, 1, 1)
    assert chart(data, "Reward")["series"][0]["points"] == [[1, 0.0], [2, 0.5]]
    assert chart(data, "Slots, batch")["series"][0]["points"] == [[0, 0], [1, 1], [2, 2]]
    assert chart(data, "Node stores, batch")["series"][0]["points"] == [[0, 0], [1, 1], [2, 2]]


def test_a_pool_of_days(tmp_path: Path) -> None:
    directory = write_batch(tmp_path / "batch", [trajectory("calc__1", 0, resolved=True)])
    rows = [{"time": 1e9 + 5 * at, "slots": 9, "used": 9 * (at == 40_000)} for at in range(50_000)]
    (directory / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = chart(report(tmp_path / "page.html", directory), "Slots")["series"][0]["points"]
    assert len(points) == 500
    assert [200_000, 9] in points


def test_what_agents_write_is_bounded_and_inert(tmp_path: Path) -> None:
    turns = [Turn(action=ATTACK, observation=ATTACK + "x" * 10_000_000, exit_code=1, seconds=1.0)]
    many = Turn(action="a", observation="\x1b[31mred\x1b[0m\x00\x1b]0;title\x07 \u202eabc", exit_code=0, seconds=1.0)
    rows = [trajectory(f"calc__{n}{ATTACK}", 0, turns=turns, diff=ATTACK + "\udc80", prompt=ATTACK) for n in range(3)]
    rows += [trajectory("calc__many", 0, turns=[many] * 3)]
    data = report(tmp_path / "page.html", write_batch(tmp_path / "batch @DATA@ <b>", rows))
    text = (tmp_path / "page.html").read_text()
    assert len(text) < 300_000
    assert text.count("<script") == 2
    assert "<img" not in text
    observation = data["episodes"][0]["full"]["actions"][0]["observation"]
    assert observation.startswith(ATTACK)
    assert "characters cut" in observation
    assert data["episodes"][0]["full"]["diff"] == ATTACK + "\\x80"
    assert data["episodes"][3]["full"]["actions"][0]["observation"] == "red\u2400 [U+202E]abc"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\r\nb\tc", "a\nb\tc"),
        ("10%\r20%", "10%\u240d20%"),
        ("\x1b[1;32mok\x1b[0m", "ok"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b", "\u241b"),
        ("\x9b31m", "[U+009B]31m"),
        ("\ud800", "[U+D800]"),
    ],
)
def test_control_characters_are_seen(text: str, seen: str) -> None:
    assert shown(text, 100) == seen


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no directory" in complaint(capsys, tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "holds no run yet" in complaint(capsys, tmp_path / "empty")
    good = write_training(tmp_path / "good", [1.0])
    assert "named twice" in complaint(capsys, good, good)
    assert "is a directory" in complaint(capsys, good, "--output", tmp_path)
    assert "cannot write" in complaint(capsys, good, "--output", tmp_path / "none" / "page.html")
    (tmp_path / "empty" / "metrics.jsonl").write_text("what\n")
    assert "metrics.jsonl, line 1: not JSON" in complaint(capsys, tmp_path / "empty")
    (tmp_path / "empty" / "metrics.jsonl").write_text("")
    (tmp_path / "empty" / "trajectories.jsonl").write_text("{}\n")
    assert "line 1: no trajectory" in complaint(capsys, tmp_path / "empty")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no chromium: install Debian's package to try the page in it")
    with Browser(program) as browser:
        yield browser


def test_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    turns = [Turn(action=ATTACK, observation=ATTACK, exit_code=1, seconds=1.0)]
    rows = [trajectory("calc__1", sample, resolved=sample == 0) for sample in range(4)]
    rows += [trajectory("calc__2" + ATTACK, 0, turns=turns, diff=ATTACK, failure_owner="agent", failure=ATTACK)]
    runs = [write_batch(tmp_path / "batch", rows), write_training(tmp_path / "training", [0.1 * n for n in range(9)])]
    page = tmp_path / "page.html"
    data = report(page, *runs)
    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light")):
        browser.look(width, 900, scheme)
        browser.open(page)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelectorAll('.chart').length") == len(data["charts"])
        assert browser.run("[...document.querySelectorAll('.plot')].every((each) => each.children.length)")
        bright = browser.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
        assert (bright > 128) == (scheme == "light")
    tiles = browser.run("[...document.querySelectorAll('.tile')].map((each) => each.innerText)")
    assert any("tasks resolved" in each and "1 of 3" in each for each in tiles)
    assert any("pass@1" in each and "12.5 %" in each for each in tiles), tiles
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    browser.drawn()
    shown_values = browser.run("document.querySelector('.chart table').innerText")
    assert "9\t0.8" in shown_values
    # From the list to a trajectory and back, and the filter.
    assert browser.run("document.querySelectorAll('#trajectories tbody tr').length") == 5
    browser.run("document.querySelector('#trajectories a').click()")
    browser.drawn()
    assert browser.run("document.querySelector('h1').textContent") == "calc__1"
    assert browser.run("document.querySelector('pre.observation').textContent") == "calc.py"
    assert browser.run("document.querySelector('#diff .add').textContent") == "+a + b"
    browser.run("location.hash = '#trajectory-4'")
    browser.drawn()
    assert browser.run("document.querySelector('pre.observation').textContent") == ATTACK
    assert browser.run("document.documentElement.scrollWidth") <= 390
    browser.run("location.hash = ''")
    browser.drawn()
    browser.run(
        "const words = document.querySelector('input');words.value = 'calc__2'; words.dispatchEvent(new Event('input'))"
    )
    assert browser.run("document.querySelectorAll('#trajectories tbody tr').length") == 1
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.run("document.images.length") == 0
    assert browser.complaints == []
    assert {each for each in browser.requests if not each.startswith("data:")} <= {page.as_uri(), "about:blank"}
    # What the policy is for: a request that a script makes all the same does not go out.
    browser.run("fetch('http://127.0.0.1:9/x').catch(() => 0)")
    assert any("Content Security Policy" in each for each in browser.complaints)
