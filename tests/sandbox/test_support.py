"""What a machine lacks is told in one line."""

import os

from minisandbox_ray.errors import SandboxError
from minisandbox_ray.sandbox import check_supported


def test_this_machine_is_supported() -> None:
    check_supported()


def test_an_ordinary_user_is_told() -> None:
    before = os.geteuid()
    os.seteuid(65534)
    try:
        check_supported()
    except SandboxError as error:
        message = str(error)
    finally:
        os.seteuid(before)
    assert "root" in message
    assert "\n" not in message
