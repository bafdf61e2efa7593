"""Output of any length in bounded memory: the head and the tail are kept."""

import re

# ECMA-48 control sequences, operating system commands and other strings, two-byte escapes
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"
    rb"|[PX^_][^\x1b]{0,4096}\x1b\\|[ -/]+[0-~]|[0-Z\\-~])?"
)


class Capture:
    def __init__(self, limit: int) -> None:
        self.half = limit // 2
        self.clear()

    def clear(self) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._was_cut = False

    def drop_line(self, start: int, ending: bytes) -> None:
        """Take out the line that begins at `start` if it ends so."""
        end = self._head.find(b"\n", start, start + 300)
        if end >= 0 and self._head.endswith(ending, start, end):
            del self._head[start : end + 1]
            self.total -= end + 1 - start

    def note_cut(self, earlier: "Capture") -> None:
        """What was added last came from another capture."""
        self._was_cut = self._was_cut or earlier.truncated

    def add(self, data: bytes) -> None:
        self.total += len(data)
        if len(self._head) < self.half:
            room = self.half - len(self._head)
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_size += len(data)
            if self._tail_size > 4 * self.half:
                self._trim()

    def _trim(self) -> bytes:
        tail = b"".join(self._tail)[-self.half :] if self.half else b""
        self._tail, self._tail_size = [tail], len(tail)
        return tail

    @property
    def truncated(self) -> bool:
        return self._was_cut or self.total > 2 * self.half

    def parts(self) -> tuple[bytes, int, bytes]:
        """(head, number of bytes left out, tail)"""
        tail = self._trim() if self._tail else b""
        return bytes(self._head), self.total - len(self._head) - len(tail), tail

    def data(self) -> bytes:
        head, cut, tail = self.parts()
        return head + f"\n[... {cut} bytes left out ...]\n".encode() + tail if cut else head + tail

    def text(self) -> str:
        """Decoded, without terminal escapes."""
        head, cut, tail = self.parts()
        if not cut:
            return plain(head + tail)
        return f"{plain(head)}\n[... {cut} bytes left out ...]\n{plain(tail)}"


def plain(data: bytes) -> str:
    """Decoded, without terminal escapes."""
    return (_ESCAPE.sub(b"", data) if b"\x1b" in data else data).decode("utf-8", "replace")
