"""Why something that sandboxes need cannot be had on this machine, and what an administrator would do about it."""

import errno
import os
import shutil
from pathlib import Path

from .starter import cgroups


def why_no_group(controller: str) -> tuple[str, str, str]:
    """(where its groups would be made, why they cannot be, what would help)"""
    place, why = "", "no hierarchy with it is mounted here"
    remedy = "mount the control groups; in a container: --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw"
    for mount in cgroups.read_mounts():
        own = mount.target / (mount.own or "")
        try:
            has = mount.controllers if mount.version == 1 else (mount.target / "cgroup.controllers").read_text().split()
            if controller not in has:
                continue
            places = [at for each in cgroups.hierarchies([mount]) for at, has in each.candidates if controller in has]
            if places:
                return str(places[0]), f"{places[0]} takes no process of ours", _delegation(mount)
            if os.statvfs(mount.target).f_flag & os.ST_RDONLY:
                return place, f"{mount.target} is mounted read-only", f"mount -o remount,rw {mount.target}"
            if mount.version == 1 or not os.access(own, os.W_OK):
                why, remedy = f"{own} and what is above it is not ours to write", _delegation(mount)
                continue
            (own / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            why, remedy = f"{own} does not delegate: {os.strerror(error.errno or 0)}", _delegation(mount)
            if error.errno == errno.EBUSY:  # the rule of no internal processes: the kernel's cgroup-v2.rst
                why = f"{own} holds processes itself, and so cannot have groups below it"
                remedy = (
                    f"mkdir {own}/all; for p in $(cat {own}/cgroup.procs); do echo $p > {own}/all/cgroup.procs; done"
                )
    return place, why, remedy


def why_no_shell_memory() -> tuple[str, str]:
    """(why a shell's memory cannot be read, what would help)"""
    if _setting("kernel/yama/ptrace_scope") == "3":  # the kernel's admin-guide/LSM/Yama.rst
        why = "the sysctl kernel.yama.ptrace_scope is 3: nobody may read the memory of others"
        return why, "set it to 2 or less in /etc/sysctl.d and reboot: a running system does not take it back"
    return "/bin/bash tells no symbols", "install the distribution's own bash"


def _delegation(mount: cgroups.Mount) -> str:
    if mount.version == 2:
        return "start it in a delegated group: systemd-run --user --scope -p 'Delegate=cpu memory pids' COMMAND"
    at = mount.target / "users"
    return f"mkdir -p {at}; chown -R {os.getuid()} {at}; echo PID_OF_YOUR_SHELL > {at}/cgroup.procs"


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


def _is_filtered() -> bool:
    """Whether this process is itself in somebody's system call filter, as in a container."""
    return "\nSeccomp:\t2" in Path("/proc/self/status").read_text()


def for_user_namespaces() -> str:
    if _setting("user/max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=100000"
    if os.geteuid() and _setting("kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if os.geteuid() and _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    return for_namespaces()


def for_namespaces() -> str:
    capabilities = ("SYS_ADMIN", "NET_ADMIN", "MKNOD", "SYS_PTRACE") if os.geteuid() == 0 else ()
    more = "".join(f" --cap-add {name}" for name in capabilities)
    if _is_filtered():
        options = " ".join(f"--security-opt {name}=unconfined" for name in ("seccomp", "apparmor", "systempaths"))
        return f"start the container with {options}{more}"
    if os.geteuid() == 0:
        return f"start the container with{more}, or --privileged"
    return "a kernel with CONFIG_USER_NS and these namespaces; see the first line above that says no"


def subordinate_ids() -> str:
    programs = "newuidmap is installed" if shutil.which("newuidmap") else "no newuidmap"
    try:
        names = [line.split(":")[0] for line in Path("/etc/subuid").read_text().splitlines()]
        mine = str(os.getuid()) in names or os.environ.get("USER") in names
    except OSError:
        mine = False
    return f"one id only; {programs}, /etc/subuid {'has' if mine else 'has not'} a range for this user"
