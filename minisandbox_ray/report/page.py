"""One HTML file that holds all it shows: no request goes out, and texts of agents are only ever text."""

import base64
import hashlib
import json
import re
import time
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from minisandbox_ray.report.figures import figures_of, is_of_batch
from minisandbox_ray.report.read import Episode, Run
from minisandbox_ray.report.text import plain, shown
from minisandbox_ray.rollout.trajectory import Trajectory

TEXT = 20_000
"""Characters of one action, observation, prompt or log; the middle of longer ones is cut."""
DIFF = 200_000
"""Characters of a diff."""
TEXTS = 16_000_000
"""Characters of all trajectories that can be opened; those after it are listed only."""
LISTED = 5_000
"""Trajectories in the list."""
TESTS = 300
"""Tests of a grade, those that did not pass first."""


def page(runs: list[Run]) -> str:
    """The HTML of a page about these runs. Its data is a JSON object in the element ``data``: what `figures_of`
    returns, and ``episodes``."""
    episodes = [(run, each) for run in runs for each in sorted(run.episodes, key=_place)]
    data = {
        **figures_of(runs),
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "all_episodes": len(episodes),
        "episodes": _episodes(episodes[:LISTED]),
    }
    title = ", ".join(run.name for run in runs)
    style, script = _part("page.css"), _part("page.js")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"
    policy += "; base-uri 'none'; form-action 'none'"
    # In a script element "<" could end it or begin a comment; as an escape in a JSON string it means the same.
    text = json.dumps(plain(data), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"POLICY": policy, "TITLE": escape(shown(title, 200)), "STYLE": style, "SCRIPT": script, "DATA": text}
    return re.sub("@(POLICY|TITLE|STYLE|SCRIPT|DATA)@", lambda found: parts[found[1]], _part("page.html"))


def _place(episode: Episode) -> tuple[Any, ...]:
    return episode.file, episode.trajectory.instance_id, episode.trajectory.sample


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _episodes(found: list[tuple[Run, Episode]]) -> list[dict[str, Any]]:
    left = TEXTS
    rows = []
    for run, each in found:
        full = None
        if left > 0:
            full = _full(each.whole())
            left -= len(json.dumps(full))
        rows.append({**_row(run, each), "full": full})
    return rows


def _row(run: Run, episode: Episode) -> dict[str, Any]:
    each = episode.trajectory
    return {
        "run": run.name,
        "evaluation": "" if is_of_batch(episode) else episode.file.stem,
        "instance_id": shown(each.instance_id, 300),
        "sample": each.sample,
        "repo": shown(each.repo, 200),
        "policy": shown(each.policy, 200),
        "outcome": "failed" if each.failure_owner else "resolved" if each.resolved else "unresolved",
        "owner": each.failure_owner or "",
        "why": shown(each.failure or (each.graded or {}).get("reason") or "", 1000),
        "reward": each.reward,
        "turns": len(each.turns),
        "seconds": each.seconds,
        "node": shown(each.node, 100),
    }


def _full(each: Trajectory) -> dict[str, Any]:
    graded = each.graded or {}
    tests = {str(name): str(status) for name, status in (graded.get("tests") or {}).items()}
    listed = sorted(tests, key=lambda name: tests[name] in ("passed", "xfailed"))[:TESTS]
    return {
        "prompt": shown(each.prompt, TEXT),
        "actions": [
            {
                "action": shown(turn.action, TEXT),
                "observation": shown(turn.observation, TEXT),
                "exit_code": turn.exit_code,
                "seconds": turn.seconds,
            }
            for turn in each.turns
        ],
        "diff": shown(each.diff, DIFF),
        "tests": [[shown(name, 300), tests[name]] for name in listed],
        "more_tests": len(tests) - len(listed),
        "log": shown(str(graded.get("log", "")), TEXT),
        "tampered": bool(graded.get("tampered")),
        "replay": each.replay,
    }
