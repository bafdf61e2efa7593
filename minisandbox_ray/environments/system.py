"""System packages of an environment: Debian packages in a directory that sandboxes lay over their own /usr, /etc, …

Nothing is installed on the host. apt resolves and downloads inside a build sandbox, with a state of its own and the
host's sources and keys; the packages are unpacked, and their maintainer scripts are not run, but for the links of
update-alternatives, which are made. What counts as there already is no more than Debian's required packages, of which
every base system of one release has all: so the archive does not depend on what else this host has installed.
"""

import io
import re
import shlex
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from minisandbox_ray.environments.cache import cache_root, locked
from minisandbox_ray.environments.pip_settings import host_pip_settings
from minisandbox_ray.errors import BuildError
from minisandbox_ray.sandbox import Bind, Isolation, Limits, Overlay, Sandbox, SandboxSpec

DOWNLOAD_SECONDS = 1800.0

_STATUS = Path("/var/lib/dpkg/status")
_LIMITS = Limits(memory_mib=4096, disk_mib=2048)
_LEFT_OUT = ("man", "info", "lintian", "doc/*/changelog*", "doc/*/examples", "doc/*/NEWS*")
_OWN_ETC = {"passwd", "group", "shadow", "hosts", "hostname", "resolv.conf", "nsswitch.conf", "gitconfig", "mtab"}
_OWN_ETC |= {"minisandbox", "ssl", "pki", "ld.so.cache"}
"""What a sandbox has of its own, or of the base system."""
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_OPTIONS = {
    "Dir::State": "/apt/state",
    "Dir::State::lists": "/apt-cache/lists",
    "Dir::State::status": "/apt/status",
    "Dir::Cache": "/apt/cache",
    "Dir::Cache::archives": "/apt-cache/archives",
    "Dir::Log": "/apt/log",
    "Dir::Bin::dpkg": "/bin/true",  # it only downloads
    "APT::Sandbox::User": "root",
    "APT::Install-Recommends": "false",
    "APT::Get::Assume-Yes": "true",
    "Acquire::Languages": "none",
    "Acquire::Retries": "3",
    "Binary::apt::APT::Keep-Downloaded-Packages": "true",
}
_UPDATE = "apt-get -q update"
_RESOLVE = "mkdir -p /apt/none/partial; apt-get -qq --print-uris install"  # it lists what is not downloaded yet
_DOWNLOAD = "apt-get -q --download-only install"

_UNPACK = """
set -eu
for name in $names; do mkdir -p "/system/usr/$name"; ln -s "usr/$name" "/system/$name"; done
while read -r deb; do
    dpkg-deb --fsys-tarfile "/apt-cache/archives/$deb" |
        tar -x --keep-directory-symlink --no-same-owner --no-same-permissions -C /system $excluded
    dpkg-deb --ctrl-tarfile "/apt-cache/archives/$deb" > "/apt/control/$deb"
done < /apt/debs
for name in $names; do rmdir "/system/usr/$name" 2> /dev/null && rm "/system/$name" || true; done
chmod -R u+rwX /system
"""


def add_system_packages(
    packages: list[str], target: Path, scratch: Path, isolation: Isolation, log: Callable[[str], None]
) -> list[str]:
    """Unpack Debian packages, with all that they depend on, into the new directory `target`.

    Returns what came, as lines for the manifest: the command, and each package's exact version. `scratch` is an empty
    directory. Raises BuildError on a system without apt or with separate /bin and /usr/bin, for packages that there
    are not, and if they can't be fetched.
    """
    what = f"system packages {' '.join(packages)}"
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb") and _STATUS.is_file() and Path("/etc/apt").is_dir()):
        raise BuildError(f"{what}: this system has no apt: build the environment on Debian or Ubuntu")
    if not Path("/bin").is_symlink():
        raise BuildError(f"{what}: /bin and /usr/bin are apart on this system: build on a release that has them merged")
    cache = cache_root() / "apt"
    folders = [cache / "lists/partial", cache / "archives/partial", scratch / "log", scratch / "control"]
    folders += [scratch / name for name in ("state", "cache")]
    for folder in (target, *folders):
        folder.mkdir(parents=True, exist_ok=True)
    (scratch / "status").write_text(required_packages())
    options = " ".join(f"-o {shlex.quote(f'{key}={value}')}" for key, value in _OPTIONS.items())
    words = shlex.join(packages)
    settings = host_pip_settings()
    proxies = {name: value for name, value in settings.variables.items() if name.lower().endswith("_proxy")}
    spec = SandboxSpec(
        binds=[
            Bind(source=Path("/etc/apt"), target="/etc/apt"),
            Bind(source=cache, target="/apt-cache", writable=True),
            Bind(source=scratch, target="/apt", writable=True),
            Bind(source=target, target="/system", writable=True),
        ],
        env=proxies,
        network="host",
        hostname="build",
        cwd="/apt",
        isolation=isolation,
        limits=_LIMITS,
    )

    def run(command: str, why: str) -> str:
        done = box.execute(["/bin/bash", "-c", command], timeout=DOWNLOAD_SECONDS, max_output=8 << 20)
        if done.exit_code != 0 or done.timed_out or done.limit not in (None, "output"):
            said = settings.redact((done.stdout + done.stderr).decode(errors="replace")).strip().splitlines()
            errors = [line for line in said if line.startswith("E: ")] or said[-3:] or [f"{done.limit or 'time'} limit"]
            raise BuildError(f"{what}: {why}: {'; '.join(errors[:3])}")
        return done.stdout.decode(errors="replace")

    with locked(cache / "lock"), Sandbox(spec) as box:
        log("fetch the lists of system packages")
        run(f"{_UPDATE} {options}", "their lists can't be fetched")
        log(f"install {' '.join(packages)}")
        listed = run(
            f"{_RESOLVE} {options} -o Dir::Cache::archives=/apt/none -- {words}", "they can't be installed together"
        )
        debs = sorted(re.findall(r"^'[^']*' ([A-Za-z0-9_.+%~:-]+\.deb) \d+", listed, re.MULTILINE))
        run(f"{_DOWNLOAD} {options} -- {words}", "they can't be fetched")
        (scratch / "debs").write_text("".join(f"{deb}\n" for deb in debs))
        excluded = " ".join(f"--exclude=./usr/share/{each}" for each in _LEFT_OUT)
        names = " ".join(name for name in _MERGED if Path(f"/{name}").is_symlink())
        run(
            f"names={shlex.quote(names)}\nexcluded={shlex.quote(excluded)}\nset -f\n{_UNPACK}", "they can't be unpacked"
        )
    for deb in debs:
        for link, path in _alternatives(scratch / "control" / deb):
            _link(target, link, path)
    return [
        f"apt-get install --no-install-recommends {words}",
        *(f"# {name}={version.replace('%3a', ':')}" for name, version in (deb.split("_")[:2] for deb in debs)),
    ]


def system_overlays(system: Path) -> list[Overlay]:
    """What lays the directory of `add_system_packages` over a sandbox's own; nothing where there is none."""
    overlays = []
    if (system / "usr").is_dir():
        overlays.append(Overlay(target="/usr", lower=[system / "usr", Path("/usr")]))
    for place in ("etc", "var/lib", "opt"):
        for path in sorted((system / place).iterdir()) if (system / place).is_dir() else []:
            target = f"/{place}/{path.name}"
            if path.is_dir() and not path.is_symlink() and not (place == "etc" and path.name in _OWN_ETC):
                below = (
                    [Path(target)] if target in ("/etc/alternatives", "/etc/fonts") and Path(target).is_dir() else []
                )
                overlays.append(Overlay(target=target, lower=[path, *below]))
    return overlays


def system_binds(system: Path) -> list[Bind]:
    """Single files of /etc."""
    folder = system / "etc"
    return [
        Bind(source=path, target=f"/etc/{path.name}")
        for path in (sorted(folder.iterdir()) if folder.is_dir() else [])
        if path.is_file() and not path.is_symlink() and path.name not in _OWN_ETC
    ]


def required_packages() -> str:
    """dpkg's status of the packages that no Debian system is without, and of what they depend on."""
    known: dict[str, tuple[str, dict[str, str]]] = {}
    provided: dict[str, str] = {}
    for paragraph in _STATUS.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            known[fields["Package"]] = paragraph, fields
            for name in _names(fields.get("Provides", "")):
                provided.setdefault(name, fields["Package"])
    waiting = [
        name
        for name, (_, fields) in known.items()
        if fields.get("Essential") == "yes" or fields.get("Priority") == "required"
    ]
    chosen: set[str] = set()
    while waiting:
        name = waiting.pop()
        name = name if name in known else provided.get(name, "")
        if name and name not in chosen:
            chosen.add(name)
            fields = known[name][1]
            waiting += _names(f"{fields.get('Pre-Depends', '')},{fields.get('Depends', '')}")
    return "".join(f"{known[name][0].strip()}\n\n" for name in sorted(chosen))


def _names(relations: str) -> list[str]:
    """Of "a (>= 1), b:any | c": all of them, as whatever is installed of these counts."""
    return re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", relations)


def _alternatives(control: Path) -> Iterator[tuple[str, str]]:
    """(link, path) of all that a package's script would have registered."""
    with tarfile.open(fileobj=io.BytesIO(control.read_bytes())) as tar:
        try:
            script = tar.extractfile("./postinst")
        except KeyError:
            return
        text = script.read(1 << 20).decode(errors="replace").replace("\\\n", " ") if script else ""
    word = r"(/[A-Za-z0-9_./+-]+)"
    for line in text.splitlines():
        if "update-alternatives" in line:
            yield from re.findall(rf"--install\s+{word}\s+\S+\s+{word}", line)
            yield from re.findall(rf"--slave\s+{word}\s+\S+\s+{word}", line)


def _link(system: Path, link: str, path: str) -> None:
    """Where nothing is, and only to what the packages brought."""
    place, aim = (_inside(system, each) for each in (link, path))
    if place and aim and aim.exists() and not place.exists() and not place.is_symlink() and place.parent.is_dir():
        place.symlink_to(path)


def _inside(system: Path, path: str) -> Path | None:
    """Where a path of the sandbox lies in the layer, if it is below /usr, and no link leads out on the way."""
    parts = [part for part in path.split("/") if part]
    parts = parts if parts[0] == "usr" else ["usr", *parts]
    place = system.joinpath(*parts)
    if ".." in parts or any(parent.is_symlink() for parent in place.parents if parent.is_relative_to(system)):
        return None
    return place
