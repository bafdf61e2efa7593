"""What a bash knows, read from its memory: so nothing runs in the shell to tell, and nothing in it can lie or break.

Bash exports its internal variables as dynamic symbols (its loadable builtins need them). ELF: gabi, 64-bit.
A shell's memory, and the program that it may have become, are whatever the agent made of them: nothing here takes long
or grows large, and what makes no sense is an OSError or struct.error.
"""

# ruff: noqa: PTH116  (pathlib would add to every start)

import errno
import os
import struct
from pathlib import Path

_SYMBOLS = (b"last_command_exit_value", b"export_env", b"shell_variables")
_EXPORTED, _INVISIBLE, _COMPOUND = 0x1, 0x1000, 0x4 | 0x40  # attributes, bash's variables.h
_MAX_HEAP = 16 << 20
_MAX_PROGRAM = 32 << 20
_MAX_SECTIONS, _MAX_SYMBOLS = 100, 20_000
_USUAL_VARIABLES, _MAX_VARIABLES, _MAX_ENVIRONMENT = 64, 4096, 1 << 20


_AT_ENTRY = 9  # getauxval(3)
_MAX_KNOWN = 100
_known: dict[tuple[int, int, int], tuple[int, dict[bytes, int]]] = {}


def _symbols(program: str) -> tuple[int, dict[bytes, int]]:
    """(where the program is entered, {symbol: address}), before it is moved to where it is loaded"""
    status = os.stat(program)
    identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
    if identity not in _known:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        try:
            _known[identity] = _read_symbols(program)
        except (struct.error, IndexError):
            _known[identity] = 0, {}
    return _known[identity]


def _read_symbols(path: str) -> tuple[int, dict[bytes, int]]:
    """None are found in a static build, in one for 32 bits, and in what is no program at all."""
    with Path(path).open("rb") as file:
        data = file.read(_MAX_PROGRAM)
    if data[:5] != b"\x7fELF\x02":
        return 0, {}
    sections_at, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, sections_at + 64 * number)
        for number in range(min(count, _MAX_SECTIONS))
    ]
    found: dict[bytes, int] = {}
    for section in [section for section in sections if section[1] == 11][:1]:  # SHT_DYNSYM
        strings = sections[section[6]][4]
        for offset in range(section[4], section[4] + min(section[5], 24 * _MAX_SYMBOLS), 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, offset)
            text = data[strings + name : strings + name + 32].partition(b"\0")[0]
            if text in _SYMBOLS:
                found[text] = value
    if len(found) != len(_SYMBOLS):
        return 0, {}
    return struct.unpack_from("<Q", data, 24)[0], found


def _entry(pid: int) -> int:
    """Where the process entered its program. Its lowest mapping tells less: libraries come first without a limit on
    the stack."""
    auxiliary = os.open(f"/proc/{pid}/auxv", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(auxiliary, 4096)
    finally:
        os.close(auxiliary)
    for name, value in struct.iter_unpack("QQ", data[: len(data) // 16 * 16]):
        if name == _AT_ENTRY:
            return value
    raise ProcessLookupError(f"process {pid} is ending")


class ShellState:
    """Raises OSError or struct.error when the shell is gone or has become another program."""

    def __init__(self, pid: int) -> None:
        entry, symbols = _symbols(f"/proc/{pid}/exe")
        base = _entry(pid) - entry if symbols else 0
        self.is_readable = bool(symbols)
        """Otherwise nothing else here may be used."""
        self._exit_code, self._environment, self._variables = (base + symbols.get(name, 0) for name in _SYMBOLS)
        try:
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):  # to everybody, where yama's ptrace_scope is 3
            self._memory = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self.is_readable = False

    def close(self) -> None:
        os.close(self._memory)

    def exit_code(self) -> int:
        """`$?`"""
        return struct.unpack("i", _read(self._memory, 4, self._exit_code))[0]

    def exported(self) -> dict[str, str] | None:
        """Exported variables as bash last handed them to a program; None if there are none or far too many."""
        (array,) = struct.unpack("Q", _read(self._memory, 8, self._environment))
        if not array:
            return None
        pointers: tuple[int, ...] = ()
        for count in (_USUAL_VARIABLES, _MAX_VARIABLES):
            data = _read(self._memory, 8 * count, array)
            pointers = struct.unpack(f"{len(data) // 8}Q", data[: len(data) // 8 * 8])
            if 0 in pointers:
                break
        if 0 not in pointers or pointers[0] == 0:
            return None
        pointers = pointers[: pointers.index(0)]
        low, high = min(pointers), max(pointers)
        if high - low > _MAX_ENVIRONMENT:
            return None
        block = _read(self._memory, high - low + 8192, low)
        found, size = {}, 0
        for pointer in pointers:
            start = pointer - low
            end = block.find(b"\0", start)
            name, _, value = os.fsdecode(block[start : end if end >= 0 else None]).partition("=")
            size += len(name) + len(value)
            if size > _MAX_ENVIRONMENT:  # strings may overlap
                return None
            if name and name != "_":
                found[name] = value
        return found

    def exported_now(self) -> dict[str, str] | None:
        """Exported variables as they are, of a shell that is at rest; exported functions as last handed over.

        Walks the hash table of variables: VAR_CONTEXT, HASH_TABLE, BUCKET_CONTENTS and SHELL_VAR of bash 4 and 5.
        """
        memory = _Memory(self._memory)
        context = memory.pointer(self._variables)
        table = memory.pointer(context + 32)
        buckets, count = struct.unpack("Qi", memory.read(table, 12))
        if not 0 < count <= 1 << 16:
            return None
        found = {name: value for name, value in (self.exported() or {}).items() if name.startswith("BASH_FUNC_")}
        entries = [entry for (entry,) in struct.iter_unpack("Q", memory.read(buckets, 8 * count)) if entry]
        memory.fetch(min(entries, default=0), max(entries, default=0) + 4096)
        size = 0
        for _ in range(_MAX_VARIABLES):
            if not entries:
                return found
            entry = entries.pop()
            following, variable = struct.unpack("Q8xQ", memory.read(entry, 24))
            if following:
                entries.append(following)
            name, value, attributes = struct.unpack("QQ24xi", memory.read(variable, 44))
            if attributes & _EXPORTED and not attributes & (_INVISIBLE | _COMPOUND) and value:
                key, content = memory.text(name), memory.text(value)
                size += len(key) + len(content)
                if size > _MAX_ENVIRONMENT:
                    return None
                found[key] = content
        return None


def _read(memory: int, size: int, address: int) -> bytes:
    if address + size >= 1 << 63:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return os.pread(memory, size, address)


class _Memory:
    """Of a process, by /proc/PID/mem; a stretch of it may be fetched at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._start, self._block = descriptor, 0, b""

    def fetch(self, start: int, end: int) -> None:
        if end - start <= _MAX_HEAP:
            self._start, self._block = start, _read(self._descriptor, end - start, start)

    def read(self, address: int, size: int) -> bytes:
        """Raises struct.error if less is there."""
        at = address - self._start
        data = self._block[at : at + size] if 0 <= at <= len(self._block) - size else b""
        data = data or _read(self._descriptor, size, address)
        if len(data) < size:
            raise struct.error("the shell's memory is not as expected")
        return data

    def pointer(self, address: int) -> int:
        return struct.unpack("Q", self.read(address, 8))[0]

    def text(self, address: int) -> str:
        at = address - self._start
        if 0 <= at < len(self._block) and (end := self._block.find(b"\0", at)) >= 0:
            return os.fsdecode(self._block[at:end])
        data = _read(self._descriptor, 1 << 17, address)  # the longest variable that can be handed to a program
        return os.fsdecode(data.partition(b"\0")[0])
