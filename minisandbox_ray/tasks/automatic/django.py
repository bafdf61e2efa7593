"""The settings of a Django app's tests: found, or made where the source distribution forgot its own."""

import ast
import re
import sys

from minisandbox_ray.tasks.automatic.tree import SourceTree

MODULE = "testbed_settings"
"""Name of the module, in the venv's site-packages."""

_SETTINGS = """SECRET_KEY = "testbed"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
ROOT_URLCONF = {urls!r}
STATIC_URL = "/static/"
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "django.contrib.staticfiles", *{apps!r},
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [], "APP_DIRS": True,
    "OPTIONS": {{"context_processors": [
        "django.template.context_processors.debug", "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth", "django.contrib.messages.context_processors.messages",
    ]}},
}}]
"""


def is_configured(tree: SourceTree) -> bool:
    """Whether pytest's own configuration in the tree does it."""
    return any(path.endswith("conftest.py") and "settings.configure(" in text for path, text in tree.texts.items())


def settings_module(tree: SourceTree) -> str:
    """The module that the tree's files name, or that looks like it; empty if there is none."""
    said = r"""(?:DJANGO_SETTINGS_MODULE["']?\]?|--settings|--ds)[\s,:=]+["']?([A-Za-z_]\w*(?:\.\w+)*)"""
    for path in sorted(tree.texts, key=lambda path: ("test" not in path, path.count("/"), path)):
        if re.search(
            r"(^|/)(manage|conftest|noxfile|\w*run_?tests?|\w*settings)\.py$|^[^/]+\.(ini|cfg|toml)$|\.ya?ml$", path
        ):
            for module in re.findall(said, tree.text(path)):
                if any(f"/{each}".endswith(f"/{module.replace('.', '/')}.py") for each in tree.paths):
                    return str(module)
    texts = [(path, text) for path, text in tree.texts.items() if path.endswith(".py")]
    candidates = [path for path, text in texts if re.search(r"^INSTALLED_APPS\b", text, re.MULTILINE)]
    best = min(
        candidates, key=lambda path: ("test" not in path, "settings" not in path, path.count("/"), path), default=""
    )
    return best.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def configured(tree: SourceTree) -> str:
    """The text of a settings module with what a script of the tree gives to settings.configure(…); empty without."""
    for path, text in sorted(tree.texts.items()):
        if not path.endswith(".py") or "settings.configure(" not in text:
            continue
        try:
            module = ast.parse(text)
            given = [line for call in ast.walk(module) if _configures(call) for line in _given(call, module)]  # type: ignore[arg-type]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if any(line.startswith("INSTALLED_APPS") for line in given):
            # Names that the arguments use; the script itself would go on and run the tests.
            lines = [ast.unparse(node) for node in module.body if _is_plain(node)]
            return "\n".join(['SECRET_KEY = "testbed"', f"__file__ = {f'/testbed/{path}'!r}", *lines, *given, ""])
    return ""


def _configures(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("settings.configure")


def _given(call: ast.Call, module: ast.Module) -> list[str]:
    lines = []
    for keyword in call.keywords:
        value = keyword.value
        if keyword.arg is None and isinstance(value, ast.Name):
            assigned = (node.value for node in ast.walk(module) if _assigns(node, value.id))  # type: ignore[attr-defined]
            value = next(assigned, value)
        if keyword.arg is not None:
            lines.append(f"{keyword.arg} = {ast.unparse(value)}")
        elif isinstance(value, ast.Call):
            lines += [f"{each.arg} = {ast.unparse(each.value)}" for each in value.keywords if each.arg]
        elif isinstance(value, ast.Dict):
            for key, each in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    lines.append(f"{key.value} = {ast.unparse(each)}")
    return lines


def _assigns(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]


def _is_plain(node: ast.stmt) -> bool:
    """An import of the standard library's, or an assignment."""
    if isinstance(node, ast.Import):
        return all(alias.name.split(".")[0] in sys.stdlib_module_names for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in sys.stdlib_module_names
    return isinstance(node, ast.Assign)


def install_command(tree: SourceTree) -> str:
    """A shell command of a build that writes them: the apps are the tree's packages with models or an apps.py."""
    text = configured(tree) or _SETTINGS.format(apps=apps(tree), urls=_urls(tree))
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return f'cat > "$(python -c "{find}")/{MODULE}.py" <<\'END\'\n{text}END'


def apps(tree: SourceTree) -> list[str]:
    """Importable packages that look like apps, outermost first, the project's before those of its tests."""
    found = set()
    for path in tree.paths:
        match = re.fullmatch(r"(?:src/)?((?:\w+/)+)(models|apps)(/__init__)?\.py", path)
        if match and f"{path[: match.end(1)]}__init__.py" in tree.paths and "/migrations/" not in path:
            found.add(match[1].rstrip("/").replace("/", "."))
    return sorted(found, key=lambda name: ("test" in name, name.count("."), name))[:20]


def _urls(tree: SourceTree) -> str:
    """The tests' URLs if they have any; a module without is an error only where URLs are resolved."""
    found = [path for path in tree.paths if re.fullmatch(r"(\w+/)*urls\.py", path)]
    best = min(found, key=lambda path: ("test" not in path, path.count("/"), path), default="")
    return best.removesuffix(".py").replace("/", ".")
