"""W&B's files of runs that were recorded offline: cut back to a step, so that a resumed run goes on from there."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768
HEADER = 7  # of the file, and of each chunk
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[tuple[int, Any]]:
    """Of a ``.wandb`` file: where each record ends (a byte offset), and the record, a message of W&B's protobuf types.

    LevelDB's log format after 7 bytes of the file's own: blocks of 32 KiB of chunks, each with checksum, length and
    type; a record is one chunk or several. https://github.com/google/leveldb/blob/main/doc/log_format.md
    A record that a killed run left incomplete ends the file.
    """
    from wandb.proto import wandb_internal_pb2

    make: Any = vars(wandb_internal_pb2)["Record"]  # made at run time
    content, position, data = path.read_bytes(), HEADER, b""
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + HEADER])
        if kind == 0 or position + HEADER + length > len(content):
            return
        data += content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (FULL, LAST):
            record = make()
            record.ParseFromString(data)
            data = b""
            yield position, record


def cut_back(path: Path, step: int) -> int:
    """Take out all steps after ``step``, and what follows the last one that is kept: the end of the run, and what a
    killed run left incomplete. Returns that last one, 0 if there is none."""
    kept, has_steps, last = HEADER, False, 0
    for end, record in records(path):
        is_step = record.WhichOneof("record_type") == "history"
        has_steps = has_steps or is_step
        if not has_steps or (is_step and _step(record.history) <= step):
            kept = end
            last = _step(record.history) if is_step else 0
    os.truncate(path, kept)
    return last


def _step(history: Any) -> int:
    return next((json.loads(item.value_json) for item in history.item if item.key == "_step"), history.step.num)
