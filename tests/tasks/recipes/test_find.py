"""The tables of the installed packages, read for tasks of small repositories under their names."""

from pathlib import Path

import pytest

from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks import Task
from minisandbox_ray.tasks.recipes import find_recipe

from .conftest import Mirror

PATCH = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"


def _task(repo: str, **fields: str) -> Task:
    return Task.model_validate({"instance_id": "a-1", "repo": repo, "FAIL_TO_PASS": ["t"], **fields})


def test_swe_bench_reads_requirement_files_of_the_setup_commit(commit_to: Mirror, mirror: Path) -> None:
    pytest.importorskip("swebench", reason="the tables are those of the package swebench")
    setup = commit_to("pallets/flask", {"requirements/dev.txt": "pytest==7.3.0\n"})
    base = commit_to("pallets/flask", {"requirements/dev.txt": "pytest==1\n", "tests/test_a.py": "a"})
    task = _task(
        "pallets/flask",
        base_commit=base,
        environment_setup_commit=setup,
        version="2.3",
        created_at="2023-03-04T18:36:21Z",
        test_patch=PATCH.format("tests/test_a.py") + PATCH.format("tests/data.txt"),
    )
    recipe = find_recipe(task, mirror)
    assert recipe.spec.source and recipe.spec.source.commit == base
    assert recipe.spec.install[0] == "python -m pip install pytest==7.3.0"
    assert "Werkzeug==2.3.7" in recipe.spec.install[1]
    assert recipe.spec.install[-1] == "python -m pip install -e ."
    assert recipe.spec.exclude_newer == "2024-10-31"
    later = task.model_copy(update={"created_at": "2025-03-04T18:36:21Z"})
    assert find_recipe(later, mirror).spec.exclude_newer == "2025-03-04"
    done = recipe.complete(task, "0" * 64)
    assert (done.environment, done.log_parser) == ("0" * 64, "swebench:pallets/flask")
    assert (done.test_command, done.test_targets) == (["/venv/bin/pytest"], ["tests/test_a.py"])


def test_swe_bench_of_other_shapes(mirror: Path, commit_to: Mirror) -> None:
    pytest.importorskip("swebench", reason="the tables are those of the package swebench")
    django = commit_to("django/django", {"tests/requirements/py3.txt": "jinja2\n"})
    patch = PATCH.format("tests/admin_views/tests.py")
    task = _task("django/django", base_commit=django, version="2.2", test_patch=patch)
    recipe = find_recipe(task, mirror)
    assert recipe.test_targets == ["admin_views.tests"]
    assert recipe.test_command[0] == "./tests/runtests.py"
    assert recipe.spec.variables["LANG"] == "C.UTF-8"
    assert recipe.spec.install[-1] == "python -m pip install -e ."
    assert recipe.spec.system_packages == []
    assert any("python 3.5" in note for note in recipe.notes)
    xarray = commit_to("pydata/xarray", {"environment.yml": "dependencies: [numpy, iris, cdms2, distributed]"})
    recipe = find_recipe(_task("pydata/xarray", base_commit=xarray, version="0.12"), mirror)
    assert "scitools-iris numpy==1.23.0" in recipe.spec.install[0]
    assert recipe.spec.install[0].endswith("dask==2022.8.1 distributed==2022.8.1")
    assert any("cdms2" in note for note in recipe.notes)
    requests = commit_to("psf/requests", {"setup.py": ""})
    recipe = find_recipe(_task("psf/requests", base_commit=requests, version="2.0"), mirror)
    assert [service.name for service in recipe.spec.services] == ["httpbin"]
    assert "pytest==7.4.4" in recipe.spec.install[0]
    assert "certs.where()" in recipe.spec.install[-1]
    scm = commit_to("pytest-dev/pytest", {"setup.py": "setup(setup_requires=['setuptools-scm'])"})
    recipe = find_recipe(_task("pytest-dev/pytest", base_commit=scm, version="5.4"), mirror)
    assert recipe.spec.install[-1].startswith("export SETUPTOOLS_SCM_PRETEND_VERSION=5.4.0; python -m pip install")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"repo": "owner/name", "version": "1.0"}, "swebench's tables have no recipe for owner/name"),
        ({"repo": "pallets/flask", "version": "9.9"}, "no recipe for version 9.9 of pallets/flask"),
        ({"repo": "owner/name"}, "names neither a version"),
    ],
)
def test_tasks_that_no_table_has(fields: dict[str, str], reason: str, mirror: Path) -> None:
    pytest.importorskip("swebench", reason="the tables are those of the package swebench")
    with pytest.raises(BuildError, match=reason):
        find_recipe(_task(**fields), mirror)


def test_swe_smith_has_one_recipe_for_a_profile(
    mirror: Path, monkeypatch: pytest.MonkeyPatch, commit_to: Mirror
) -> None:
    pytest.importorskip("swesmith", reason="the profiles are those of the package swesmith")
    from minisandbox_ray.tasks.recipes import swe_smith

    commit = commit_to("oauthlib/oauthlib", {"setup.py": ""})
    profile = next(each for each in swe_smith._profiles() if each.repo == "oauthlib")
    monkeypatch.setattr(profile, "commit", commit)
    fields = {"image_name": "swebench/swesmith.x86_64.oauthlib_1776_oauthlib.12345678", "patch": PATCH.format("a.py")}
    tasks = [_task("oauthlib/oauthlib", base_commit=commit[:8], instance_id=name, **fields) for name in "ab"]
    one, other = (find_recipe(task, mirror) for task in tasks)
    assert one == other
    assert one.log_parser == "swesmith:oauthlib/oauthlib"
    assert one.spec.packages[-1] == "pytest" and one.spec.install == ["python -m pip install -e ."]
    assert one.test_command == ["/venv/bin/pytest"]
    with pytest.raises(BuildError, match="no profile for oauthlib/oauthlib at ffffffff"):
        find_recipe(tasks[0].model_copy(update={"base_commit": "ffffffff"}), mirror)
