"""Rows of local files and of the hub, one format of file after the other; what cannot be read is a ConfigError."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minisandbox_ray.errors import ConfigError

SUFFIXES = (".parquet", ".json", ".jsonl", ".ndjson")
_SPLIT = re.compile(r"(?P<split>[A-Za-z][A-Za-z0-9_]*)(?:-\d{5}-of-\d{5})?\.[a-z]+")
_BATCH = 64  # rows: some of R2E-Gym's have megabytes


@dataclass(frozen=True, slots=True)
class BadLine:
    """A row that is not even one."""

    reason: str


AnyRow = dict[str, Any] | BadLine


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, to be read once."""

    columns: frozenset[str]
    """Those that at least half of the rows have."""
    rows: Iterator[AnyRow]


def read_table(path: Path, split: str | None) -> Table:
    """A file, a directory of files, or one that `datasets` saved. Raises ConfigError if it is none or lacks `split`."""
    if path.is_dir():
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            return _saved(path, split)
        return _files(_of_split(path, split))
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"data set {path}: expected a folder or a file of {', '.join(SUFFIXES)}")
    return _files([path])


def read_hub(name: str, split: str | None) -> Table:
    """A data set of the hub by owner/name. Raises ConfigError, also where the network does not allow."""
    datasets = _datasets()
    try:
        return _dataset(datasets.load_dataset(name, split=split), name, split)
    except ConfigError:
        raise
    except Exception as error:  # the hub's, the network's, pyarrow's: all of it is bad input to us
        why = " ".join(str(error).split())[:300]
        raise ConfigError(f"data set {name} is no path here, and the hub does not give it: {why}") from error


def _of_split(folder: Path, split: str | None) -> list[Path]:
    """The files of a split below a folder, as the hub lays them out: data/test-00000-of-00001.parquet, test.jsonl."""
    files = sorted(path for place in (folder, folder / "data") for path in _listed(place) if path.suffix in SUFFIXES)
    if not files:
        raise ConfigError(f"data set {folder}: neither task folders nor files of {', '.join(SUFFIXES)} in it")
    by_split: dict[str, list[Path]] = {}
    for path in files:
        match = _SPLIT.fullmatch(path.name)
        by_split.setdefault(match["split"] if match else path.stem, []).append(path)
    return by_split[_choose(list(by_split), split, str(folder))]


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _choose(splits: list[str], split: str | None, where: str) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split in splits:
        return str(split)
    asked = f"has no split {split}" if split else "has several splits, name one"
    raise ConfigError(f"data set {where} {asked}: {', '.join(splits)}")


def _files(paths: list[Path]) -> Table:
    tables = [_parquet(path) if path.suffix == ".parquet" else _json(path) for path in paths]
    return Table(tables[0].columns, (row for table in tables for row in table.rows))


def _parquet(path: Path) -> Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(f"data set {path}: parquet files need the package pyarrow") from error

    def rows() -> Iterator[AnyRow]:
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_BATCH):
                    yield from batch.to_pylist()
        except (OSError, pyarrow.ArrowException) as error:
            raise _unreadable(path, error) from error

    try:
        columns = frozenset(parquet.read_schema(path).names)
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, error) from error
    return Table(columns, rows())


def _json(path: Path) -> Table:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    rows: list[AnyRow]
    whole = _whole(path, text) if path.suffix == ".json" else None
    if isinstance(whole, list):
        rows = [row if isinstance(row, dict) else BadLine("is not a JSON object") for row in whole]
    elif isinstance(whole, dict):  # {id: row}, or one row
        inner = list(whole.values())
        rows = list(inner) if inner and all(isinstance(row, dict) for row in inner) else [whole]
    else:
        rows = [
            _line(line) for line in text.split("\n") if line.strip()
        ]  # splitlines() knows more ends than JSON lines
    good = [row for row in rows if isinstance(row, dict)]
    counts = Counter(name for row in good for name in row)
    return Table(frozenset(name for name, count in counts.items() if 2 * count >= len(good)), iter(rows))


def _whole(path: Path, text: str) -> Any:
    """The one JSON value of a .json file; None if it has lines of them."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        first = text.lstrip().split("\n", 1)[0]
        if isinstance(_line(first), dict):
            return None
        raise _unreadable(path, error) from error


def _line(line: str) -> AnyRow:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadLine(f"is not JSON: {error}")
    return row if isinstance(row, dict) else BadLine("is not a JSON object")


def _saved(path: Path, split: str | None) -> Table:
    datasets = _datasets()
    try:
        return _dataset(datasets.load_from_disk(str(path)), str(path), split)
    except ConfigError:
        raise
    except Exception as error:  # pyarrow's, json's, KeyError: the folder is not what it says
        raise _unreadable(path, error) from error


def _dataset(data: Any, name: str, split: str | None) -> Table:
    if isinstance(data, dict):  # a DatasetDict is one
        data = data[_choose(list(data), split, name)]
    return Table(frozenset(data.column_names), iter(data))


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError("saved data sets and the hub need the package datasets") from error
    return datasets


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"data set {path} cannot be read: {' '.join(str(error).split())[:300]}")
