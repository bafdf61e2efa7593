import pytest

from minisandbox_ray.tasks.recipes.recipe import test_command as command_of
from minisandbox_ray.tasks.recipes.shell import editable, read_steps, settings


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m pip install .", "python -m pip install -e ."),
        ("python setup.py install", "python -m pip install -e ."),
        ("python setup.py build; python setup.py install", "python -m pip install -e ."),
        ("pip install .[test]", "pip install -e .[test]"),
        ("python -m pip install -v --no-build-isolation '.[dev,test]'", None),
        ("python -m pip install -e .[test]", "python -m pip install -e .[test]"),
        ("pip install -r requirements.txt", "pip install -r requirements.txt"),
        ("pip install ./sub", "pip install ./sub"),
    ],
)
def test_the_repository_is_installed_editable(line: str, expected: str | None) -> None:
    assert editable(line) == (expected or "python -m pip install -v --no-build-isolation -e '.[dev,test]'")


def test_what_becomes_of_lines() -> None:
    steps = read_steps(
        [
            "apt-get -y update && DEBIAN_FRONTEND=noninteractive apt-get install -y libenchant-2-dev hunspell-en-us",
            "apt-get update && apt-get install ghostscript -y && touch x",
            "echo 'en_US UTF-8' > /etc/locale.gen",
            "sed -i 's/>=>=/>=/' setup.cfg",
        ]
    )
    assert steps.commands == ["sed -i 's/>=>=/>=/' setup.cfg"]
    assert steps.system_packages == ["libenchant-2-dev", "hunspell-en-us", "ghostscript"]
    assert [note.split(" (")[0] for note in steps.notes] == [
        "left out: touch x",
        "left out: echo 'en_US UTF-8' > /etc/locale.gen",
    ]


def test_plugins_of_graphviz_are_listed_where_it_looks() -> None:
    steps = read_steps(["apt-get update && apt-get install -y graphviz", "true"])
    place = steps.variables["GVBINDIR"]
    assert place.startswith("/venv/")
    assert steps.commands[0] == "true"
    assert steps.commands[1].endswith(f" {place}/ && dot -c")
    assert read_steps(["apt-get install ghostscript"]).variables == {}


def test_exports_become_variables() -> None:
    variables, rest = settings(
        ["export LANG=en_US.UTF-8", "export PYTHONIOENCODING='utf8'", "export LANGUAGE=e", "sed x"]
    )
    assert variables == {"LANG": "C.UTF-8", "PYTHONIOENCODING": "utf8"}
    assert rest == ["sed x"]


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("pytest --no-header -rA --tb=no -p no:cacheprovider", ["/venv/bin/pytest"]),
        ("pytest test.py -n auto -o console_output_style=classic -vv", ["/venv/bin/pytest", "test.py", "-n", "auto"]),
        (
            "PYTHONWARNINGS='ignore::UserWarning,x' bin/test -C",
            ["env", "PYTHONWARNINGS=ignore::UserWarning,x", "bin/test", "-C"],
        ),
        ("./tests/runtests.py --verbosity 2", ["./tests/runtests.py", "--verbosity", "2"]),
    ],
)
def test_commands_lose_only_what_changes_the_report(line: str, argv: list[str]) -> None:
    assert command_of(line) == argv
