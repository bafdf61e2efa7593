"""The private /etc of a sandbox: nothing of the host's but what programs need and what is no secret."""

# ruff: noqa: PTH115

import functools
import os
from pathlib import Path
from typing import Any

ETC_DIRECTORIES = ("alternatives", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted", "fonts")
HOST_FILES = (
    "ld.so.cache",
    "localtime",
    "mime.types",
    "os-release",
    "protocols",
    "services",
    "shells",
    "ssl/openssl.cnf",
    "timezone",
)
_PASSWD = """\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = "root:x:0:\ndaemon:x:1:\ntty:x:5:\nusers:x:100:\nwww-data:x:33:\nnogroup:x:65534:\n"
# checkStat and trustctime: a file's inode number and change time differ between the lower layer, where the index was
# written, and an overlay over it; without them the first `git status` reads the whole repository
GITCONFIG = """\
[user]
\tname = agent
\temail = agent@sandbox
[safe]
\tdirectory = *
[core]
\tcheckStat = minimal
\ttrustctime = false
[init]
\tdefaultBranch = main
[advice]
\tdetachedHead = false
"""


@functools.cache
def _host_files() -> dict[str, bytes | str]:
    """Read once, in the starter: {path below /etc: content, or a link's target}."""
    found: dict[str, bytes | str] = {}
    for name in HOST_FILES:
        path = Path("/etc", name)
        if path.is_symlink() and "/usr/" in os.readlink(path):
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


@functools.cache
def common_files() -> dict[str, bytes | str]:
    """What no plan changes: {path below /etc: content, or a link's target}."""
    return {
        **_host_files(),
        "passwd": _PASSWD.encode(),
        "group": _GROUP.encode(),
        "gitconfig": GITCONFIG.encode(),
        "minisandbox": b"private root\n",
        "mtab": "/proc/self/mounts",
        "nsswitch.conf": b"passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
    }


def etc_files(plan: dict[str, Any]) -> dict[str, bytes]:
    """What a plan adds: {path below /etc: content}."""
    hostname = plan["hostname"]
    hosts = f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost\n"
    files = {"hostname": f"{hostname}\n".encode(), "hosts": (hosts + plan["hosts"]).encode()}
    if plan["resolv_conf"]:
        files["resolv.conf"] = plan["resolv_conf"].encode()
    return files
