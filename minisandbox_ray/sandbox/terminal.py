"""A program on a terminal, for a person at another one."""

import fcntl
import os
import socket
import struct
import termios

from minisandbox_ray.errors import SandboxError

from .starter import wire


class Terminal:
    """Read and write `descriptor`; reading gives an error (EIO) once the last program on the terminal has ended."""

    def __init__(self, channel: socket.socket, descriptors: list[int]) -> None:
        self._channel = channel
        (self.descriptor,) = descriptors
        self.ended = channel.fileno()
        """Readable once the program has ended; others may still hold the terminal then."""

    def resize(self, rows: int, columns: int) -> None:
        """Tell the program the size of the window, in characters."""
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def wait(self) -> int:
        """Until the program ends; -> its exit status, 128 + signal if a signal ended it. Call it once.

        Raises SandboxError if the sandbox ends first.
        """
        received = wire.receive(self._channel)
        if received is None:
            raise SandboxError("the sandbox is gone (closed, or its first process was killed)")
        code = received[0]["exit"]
        return 128 - code if code < 0 else code

    def close(self) -> None:
        """Hang up; a program that still runs is killed."""
        self._channel.close()
        os.close(self.descriptor)
