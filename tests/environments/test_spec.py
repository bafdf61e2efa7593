from pathlib import Path

import pytest
from pydantic import ValidationError

from minisandbox_ray.environments import BaseSystem, EnvSpec, InterpreterId, Source, cache_root, environment_digest

INTERPRETER = InterpreterId(version="3.12.1", build_id="ab")
BASE = BaseSystem(os="debian 12", libc="glibc 2.36", arch="x86_64")


def test_digest_covers_everything_the_content_depends_on() -> None:
    spec = EnvSpec(packages=["pytest"], variables={"A": "1", "B": "2"})
    variants = [
        environment_digest(spec, INTERPRETER, BASE),
        environment_digest(spec.model_copy(update={"packages": ["pytest==8"]}), INTERPRETER, BASE),
        environment_digest(spec, INTERPRETER.model_copy(update={"build_id": "cd"}), BASE),
        environment_digest(spec, INTERPRETER, BASE.model_copy(update={"libc": "glibc 2.40"})),
        environment_digest(spec, INTERPRETER, BASE.model_copy(update={"os": "debian 13"})),
        environment_digest(spec, INTERPRETER, BASE.model_copy(update={"arch": "aarch64"})),
    ]
    assert len(set(variants)) == len(variants)
    reordered = EnvSpec(variables={"B": "2", "A": "1"}, packages=["pytest"])
    assert environment_digest(reordered, INTERPRETER, BASE) == variants[0]


def test_fields_that_came_later_leave_older_digests_alone() -> None:
    spec = EnvSpec(python="3.12", packages=["pytest==8.3.5"], variables={"A": "1"})
    assert environment_digest(spec, INTERPRETER, BASE) == (
        "9eacb529a36461aee482226aae8e534af2e42ab65ab88cdbc57fe8e2b65abf8b"
    )
    dated = spec.model_copy(update={"exclude_newer": "2020-01-31"})
    assert environment_digest(dated, INTERPRETER, BASE) != environment_digest(spec, INTERPRETER, BASE)


def test_digest_of_a_directory_covers_its_content_and_not_its_name(tmp_path: Path) -> None:
    digests = []
    for name, text in (("one", "x"), ("two", "x"), ("three", "y")):
        (tmp_path / name / ".git").mkdir(parents=True)
        (tmp_path / name / ".git/HEAD").write_text(name)
        (tmp_path / name / "module.py").write_text(text)
        spec = EnvSpec(source=Source(kind="path", path=tmp_path / name))
        digests.append(environment_digest(spec, INTERPRETER, BASE))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    "bad",
    [
        {"python": "2.7"},
        {"python": "3.5"},
        {"python": "latest"},
        {"source": {"kind": "sdist", "name": "a"}},
        {"source": {"kind": "sdist", "name": "a; rm -rf /", "version": "1"}},
        {"source": {"kind": "path"}},
        {"packages": ["a @ https://user:word@example.org/a.whl"]},
        {"unknown": 1},
    ],
)
def test_bad_specs_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EnvSpec.model_validate(bad)


def test_cache_root_follows_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINISANDBOX_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("MINISANDBOX_CACHE")
    assert cache_root() == Path.home() / ".cache" / "minisandbox_ray"
