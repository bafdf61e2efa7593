"""Settings for the tests of a Django app whose source distribution forgot its own."""

import re

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


def install_command(tree: SourceTree) -> str:
    """A shell command of a build that writes them: the apps are the tree's packages with models or an apps.py."""
    text = _SETTINGS.format(apps=apps(tree), urls=_urls(tree))
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
