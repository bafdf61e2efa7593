"""network: sink, a network whose packets get nowhere."""

import pytest

from .conftest import Factory

CONNECT = """
import errno, socket, sys
sock = socket.socket()
sock.settimeout(float(sys.argv[3]))
try:
    sock.connect((sys.argv[1], int(sys.argv[2])))
except socket.timeout:
    print("timeout")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize(
    ("network", "address", "answer"),
    [
        ("sink", "10.255.255.1", "timeout"),
        ("sink", "192.0.2.7", "timeout"),
        ("sink", "127.0.0.1", "ECONNREFUSED"),
        ("none", "10.255.255.1", "ENETUNREACH"),
    ],
)
def test_what_a_connection_meets(start: Factory, network: str, address: str, answer: str) -> None:
    sandbox = start(spec={"network": network})
    result = sandbox.execute(["python3", "-c", CONNECT, address, "81", "0.3"])
    assert (result.stdout.decode().strip(), result.stderr) == (answer, b"")


def test_a_sink_has_no_way_out(start: Factory) -> None:
    sandbox = start(spec={"network": "sink"})
    devices = sandbox.execute(["cat", "/proc/net/dev"]).stdout.decode().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]


def test_names_of_the_loopback(start: Factory) -> None:
    sandbox = start(spec={"network": "sink", "hosts": ["httpbin.org"]})
    lookup = "import socket; print(socket.gethostbyname('httpbin.org'))"
    assert sandbox.execute(["python3", "-c", lookup]).stdout == b"127.0.0.1\n"
    unknown = "import socket; socket.gethostbyname('nowhere.example')"
    assert b"gaierror" in sandbox.execute(["python3", "-c", unknown]).stderr
