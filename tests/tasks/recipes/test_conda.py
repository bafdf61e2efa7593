import pytest

from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks.recipes.conda import pip_names, read_environment


def test_forms_of_versions() -> None:
    found = pip_names(
        [
            "python=3.8",
            "numpy=1.19",
            "scipy=1.5.2=py36h1",
            "pandas<2.0.0",
            "conda-forge::iris >=3",
            "attrs==23.1.0",
            "pip",
        ]
    )
    assert found.python == "3.8"
    expected = ["numpy==1.19.*", "scipy==1.5.2.*", "pandas<2.0.0", "scitools-iris>=3", "attrs==23.1.0"]
    assert found.requirements == expected


def test_an_environment_file() -> None:
    text = """
name: tests
channels: [conda-forge]
dependencies:
  - matplotlib-base  # a comment
  - hdf5
  - pip:
    - numbagg
    - git+https://example.org/a.git
"""
    found = read_environment(text)
    assert found.requirements == ["matplotlib", "numbagg"]
    assert found.notes == [
        "left out: hdf5, which pip cannot install",
        "left out: git+https://example.org/a.git",
    ]


@pytest.mark.parametrize("text", ["", "a: [", "dependencies: 3", "name: x"])
def test_what_is_no_environment_file(text: str) -> None:
    with pytest.raises(BuildError, match=r"environment\.yml is none of conda's"):
        read_environment(text)
