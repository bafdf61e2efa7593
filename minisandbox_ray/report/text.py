"""Texts of agents and programs as people may see them: bounded, and with nothing in them that hides or moves."""

import math
import re
from typing import Any

from minisandbox_ray.rollout.observations import cut

# What a terminal acts on: control sequences (colours), strings such as titles, and two-character escapes.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def shown(text: str, chars: int) -> str:
    """At most about ``chars`` characters of the text, without what a terminal would act on; other control characters
    as Unicode's pictures of them, and those that change the order of what is read by name."""
    return _UNSEEN.sub(_picture, _SEQUENCE.sub("", cut(text, chars).replace("\r\n", "\n")))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"[U+{code:04X}]"


def plain(value: Any) -> Any:
    """Data as JSON has it: numbers that are none become null."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
