"""What a machine lacks is told in one line."""

from minisandbox_ray.sandbox import check_supported


def test_this_machine_is_supported() -> None:
    check_supported()
