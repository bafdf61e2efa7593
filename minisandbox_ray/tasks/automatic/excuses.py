"""Why a test fails for something that no environment has: a network, an account, Windows, what was never shipped."""

import posixpath
import re
import sys
from collections.abc import Collection

from packaging.utils import canonicalize_name

from minisandbox_ray.tasks.automatic.imports import ELSEWHERE, part_of_shared, project_of
from minisandbox_ray.tasks.automatic.tables import FIXTURES
from minisandbox_ray.tasks.automatic.tree import SourceTree, is_below_tests, is_package

OUTSIDE = re.compile(
    r"Connection ?(refused|Error|reset)|ConnectError|NewConnectionError|Max retries exceeded|Network is unreachable"
    r"|Name or service not known|Temporary failure in name resolution|gaierror|nodename nor servname|ProxyError"
    r"|Cannot connect to host|No route to host|URLError|offline mode|couldn't connect to|Could not resolve host"
    r"|(can't|could not|cannot|unable to|failed to) (create a |establish a (new )?)?connect(ion)? (to|with)\b"
    r"|ServerSelectionTimeout|MasterNotFoundError|NoBrokersAvailable|OperationalError|LocalEntryNotFoundError"
    r"|Address not available"
    r"|DefaultCredentialsError|NoCredentialsError|(API|access|secret)[_ ]?key|credentials?\b|DBUS_SESSION_BUS_ADDRESS"
    r"|No such file or directory: '(docker|redis-server|java|node|npm|psql|mysql|mongod|dbus-daemon)'",
    re.IGNORECASE,
)
"""What failures say that want a network, a service or somebody's account."""
NOT_SHIPPED = "its source tree lacks "
_COMPARED = re.compile(r"AssertionError|assert\b|[-+?]|Full diff|Use -v")
_RELATIVE = re.compile(
    r"^(\S+)/[^/\s]+\.py:\d+: in <module>\n\s+from (\.+)(\w[\w.]*)? import (\w+)[^\n]*\n"
    r"E\s+ImportError: attempted relative import",
    re.MULTILINE,
)
"""pytest's words for a relative import in a file of no package: folder, dots, module, name."""
_GENERATED = re.compile(r"(^|/)(build|dist|\.?cache|[^/]*\.egg-info|__pycache__)(/|$)")


class Excuses:
    """Looks for them in what failures of one source tree say."""

    def __init__(self, tree: SourceTree, unavailable: Collection[str] = ()) -> None:
        """`unavailable` are the projects that the index does not have."""
        self._tree = tree
        self._unavailable = {canonicalize_name(name) for name in unavailable}
        self._folders = {path.rpartition("/")[0] for path in tree.paths}
        self._folders |= {"/".join(path.split("/")[:count]) for path in self._folders for count in range(1, 12)}

    def reason(self, failure: str) -> str:
        """What a failure shows to be missing; empty if the environment may be at fault.

        Of pytest's text only the lines of exceptions count, marked with E: any source may speak of a connection or of
        credentials, and so may what an assertion compares.
        """
        for folder, dots, module, name in _RELATIVE.findall(failure):
            parts = [*folder.split("/")[: 1 - len(dots) or None], *(module or name).split(".")]
            if self._lacks_module(".".join(parts)):
                return f"{NOT_SHIPPED}the module {'.'.join(parts)}"
        failure = "\n".join(
            line for line in re.findall(r"^E\s+(.*)", failure, re.MULTILINE) if not _COMPARED.match(line)
        )
        if match := OUTSIDE.search(failure):
            return f"wants what a sandbox has not ({match[0]})"
        for module in re.findall(r"No module named '?([\w.]+)'?", failure):
            if ELSEWHERE.fullmatch(module.partition(".")[0]):
                return f"wants another operating system ({module})"
            if self._lacks_module(module):
                return f"{NOT_SHIPPED}the module {module}"
        for name, module in re.findall(
            r"cannot import name '(\w+)' from '([\w.]+)' \(unknown location\)", failure
        ):  # from a folder without __init__.py
            if self._lacks_module(f"{module}.{name}"):
                return f"{NOT_SHIPPED}the module {module}.{name}"
        for named in re.findall(r"No such file or directory:? ?[\"']([^\"'\n]+)[\"']", failure):
            if path := self._lacking_file(named):
                return f"{NOT_SHIPPED}{path}"
        for template in re.findall(r"Template(?:NotFound|DoesNotExist): ([\w./-]+\.\w+)$", failure, re.MULTILINE):
            if not any(each == template or each.endswith(f"/{template}") for each in self._tree.paths):
                return f"{NOT_SHIPPED}the template {template}"
        for fixture in re.findall(r"fixture '(\w+)' not found", failure):
            if fixture not in FIXTURES and not self._defines(fixture):
                return f"{NOT_SHIPPED}the fixture {fixture}"
        return ""

    def _lacks_module(self, module: str) -> bool:
        """Whether it would be the tree's own and is not there, or is of a project that no index has.

        A package's own modules may be made when it is built: that they are missing may be the environment's fault.
        """
        project = project_of(module)
        if project and canonicalize_name(project) in self._unavailable:
            return True
        path = module.replace(".", "/")
        top = path.partition("/")[0]
        if top in sys.stdlib_module_names and top != "test":
            return False
        if (part := part_of_shared(module)) and not self._is_own(part.replace(".", "/")):
            return False  # another project's
        is_there = any(each.endswith(f"{path}{end}") for each in self._tree.paths for end in (".py", "/__init__.py"))
        return not is_there and self._is_own(top) and (is_below_tests(f"{path}/") or not is_package(self._tree, top))

    def _is_own(self, folder: str) -> bool:
        return any(place in self._folders for place in (folder, f"src/{folder}")) or folder in {"test", "tests"}

    def _lacking_file(self, named: str) -> str:
        """A file of the tree that is not in it, relative to its root; empty for others."""
        path = posixpath.normpath(named.removeprefix("/testbed/"))
        if path.startswith(("/", "..")) or "/" not in path or _GENERATED.search(path):
            return ""
        own = self._is_own(path.partition("/")[0]) or named.startswith("/testbed/")
        is_there = any(each == path or each.endswith(f"/{path}") for each in self._tree.paths) or any(
            each == path or each.endswith(f"/{path}") for each in self._folders
        )
        in_package = is_package(self._tree, path.partition("/")[0]) and not is_below_tests(path)
        return "" if is_there or in_package or not own else path

    def _defines(self, fixture: str) -> bool:
        pattern = re.compile(rf"def {fixture}\b|name=[\"']{fixture}[\"']")
        return any(pattern.search(text) for text in self._tree.texts.values())
