import pytest

from minisandbox_ray.tasks.sections import keep_test_sections

CFG = "[metadata]\nname = a\n\n[tool:pytest]\naddopts = -q\n\n[flake8]\nignore = E1\n"
TOML = '[project]\nname = "a"\n\n[tool.pytest.ini_options]\naddopts = "-q"\n\n[tool.black]\nline-length = 9\n'


@pytest.mark.parametrize(
    ("name", "pristine", "changed"),
    [
        ("setup.cfg", CFG, CFG.replace("name = a", "name = b")),
        ("setup.cfg", CFG, CFG.replace("ignore = E1", "ignore = E1\n\n[new]\na = pytest")),
        ("setup.cfg", "[metadata]\nname = a\n", "[metadata]\nname = b\n"),
        ("pyproject.toml", TOML, TOML.replace('name = "a"', 'name = "b"')),
        ("pyproject.toml", TOML, TOML.replace("[tool.black]", "[tool.ruff]")),
    ],
)
def test_the_product_s_sections_change(name: str, pristine: str, changed: str) -> None:
    merged = keep_test_sections(name, pristine, changed)
    assert sorted(filter(None, merged.splitlines())) == sorted(filter(None, changed.splitlines()))


@pytest.mark.parametrize(
    ("name", "pristine", "changed"),
    [
        ("setup.cfg", CFG, CFG.replace("-q", "-p evil")),
        ("setup.cfg", CFG, CFG.replace("[tool:pytest]\naddopts = -q\n", "")),
        ("setup.cfg", CFG, CFG + "[pytest]\naddopts = -p evil\n"),
        ("setup.cfg", CFG, CFG.replace("name = a", "name = a\x0b[pytest]\x0baddopts = -p evil")),
        ("setup.cfg", "[metadata]\nname = a\n", "[metadata]\nname = a\n[tool:pytest] # x\naddopts = -p evil\n"),
        ("pyproject.toml", TOML, TOML.replace("-q", "-p evil")),
        ("pyproject.toml", TOML, TOML + "[tool.pytest.more]\na = 1\n"),
        ("pyproject.toml", TOML, '[tool]\npytest = {ini_options = {addopts = "-p evil"}}\n'),
        ("pyproject.toml", TOML, 'tool.pytest.ini_options.addopts = "-p evil"\n'),
        ("pyproject.toml", '[project]\nname = "a"\n', '[ tool . "pytest" . ini_options ]\naddopts = "-p evil"\n'),
        ("pyproject.toml", TOML, "no toml ["),
    ],
)
def test_the_tests_sections_stay(name: str, pristine: str, changed: str) -> None:
    merged = keep_test_sections(name, pristine, changed)
    assert "evil" not in merged and "more" not in merged
    assert ("-q" in merged) == ("-q" in pristine)
