"""Ten environments of real packages, with what their tests need, as of the day of the package's release."""

from typing import Any

# name, version, python, day until which versions count, requirements besides pytest, extra of the package
PACKAGES = [
    ("Flask", "3.0.3", "3.12", "2024-05-01", ["asgiref"], ""),
    ("Django", "5.1", "3.12", "2024-08-15", ["Pillow", "jinja2", "numpy", "PyYAML", "redis", "selenium"], ""),
    ("sphinx", "8.0.2", "3.12", "2024-08-05", ["defusedxml", "html5lib", "setuptools"], ""),
    ("sympy", "1.13.3", "3.12", "2024-10-01", ["numpy", "matplotlib", "hypothesis"], ""),
    ("xarray", "2024.7.0", "3.11", "2024-08-15", ["scipy", "dask", "matplotlib", "netCDF4", "zarr"], ""),
    ("seaborn", "0.13.2", "3.11", "2024-02-15", ["scipy", "statsmodels"], ""),
    ("networkx", "3.3", "3.12", "2024-05-01", ["pandas"], "default"),
    ("dask", "2024.8.0", "3.12", "2024-08-15", ["pyarrow", "scipy", "sparse"], "array,dataframe"),
    ("librosa", "0.10.2", "3.11", "2024-06-15", ["matplotlib", "pytest-mpl"], ""),
    ("pylint", "3.2.7", "3.12", "2024-09-15", ["typing_extensions", "requests", "py"], ""),
]


def specs() -> list[Any]:
    """Their EnvSpecs."""
    from minisandbox_ray.environments import EnvSpec, Source

    return [
        EnvSpec(
            python=python,
            source=Source(kind="sdist", name=name, version=version),
            packages=["pytest", *packages],
            install=[f"pip install -e '.[{extra}]'" if extra else "pip install -e ."],
            exclude_newer=day,
        )
        for name, version, python, day, packages, extra in PACKAGES
    ]


def build_all(log: Any) -> list[Any]:
    """Their manifests; built into the cache at MINISANDBOX_CACHE where they are not."""
    from minisandbox_ray.environments import NodeStore, build_environment, cache_root

    store = NodeStore(cache_root() / "store")
    manifests = []
    for spec in specs():
        log(f"{spec.describe()}")
        manifests.append(build_environment(spec, cache_root() / "archives", store))
    return manifests
