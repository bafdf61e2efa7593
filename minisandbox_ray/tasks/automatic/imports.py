"""Which projects have the modules that tests import: read from the tests' syntax trees, and a small table of names."""

import ast
import re
import sys
import warnings

from minisandbox_ray.tasks.automatic.tree import SourceTree

PROJECTS = {
    "attr": "attrs",
    "babel": "Babel",
    "Bio": "biopython",
    "bs4": "beautifulsoup4",
    "botocore": "botocore",
    "cairo": "pycairo",
    "Crypto": "pycryptodome",
    "Cryptodome": "pycryptodomex",
    "Cython": "Cython",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "discord": "discord.py",
    "django": "Django",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "PyMuPDF",
    "flask": "Flask",
    "flask_sqlalchemy": "Flask-SQLAlchemy",
    "fs": "fs",
    "gi": "PyGObject",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "googleapiclient": "google-api-python-client",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_status": "grpcio-status",
    "grpc_tools": "grpcio-tools",
    "IPython": "ipython",
    "jose": "python-jose",
    "jwt": "PyJWT",
    "kafka": "kafka-python",
    "ldap": "python-ldap",
    "lxml": "lxml",
    "magic": "python-magic",
    "markdown": "Markdown",
    "memcache": "python-memcached",
    "mock": "mock",
    "mpl_toolkits": "matplotlib",
    "MySQLdb": "mysqlclient",
    "nacl": "PyNaCl",
    "nose": "nose",
    "OpenSSL": "pyOpenSSL",
    "PIL": "Pillow",
    "pkg_resources": "setuptools<81",
    "psycopg2": "psycopg2-binary",
    "pydispatch": "PyDispatcher",
    "pylab": "matplotlib",
    "pythonjsonlogger": "python-json-logger",
    "rest_framework": "djangorestframework",
    "ruamel": "ruamel.yaml",
    "serial": "pyserial",
    "setuptools_scm": "setuptools-scm",
    "skbuild": "scikit-build",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "snappy": "python-snappy",
    "socks": "PySocks",
    "tests": "",
    "test": "",
    "toml": "toml",
    "usb": "pyusb",
    "websocket": "websocket-client",
    "werkzeug": "Werkzeug",
    "wx": "",
    "xdist": "pytest-xdist",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
    "zope": "zope.interface",
    "_pytest": "pytest",
    "pytest_django": "pytest-django",
    "django_filters": "django-filter",
    "async_generator": "async-generator",
    "asynctest": "asynctest",
    "pkginfo": "pkginfo",
    "httpretty": "httpretty",
    "imp": "",
    "distutils": "setuptools",
    "asyncore": "pyasyncore",
    "asynchat": "pyasynchat",
    "smtpd": "",
    "telnetlib": "standard-telnetlib",
    "cgi": "legacy-cgi",
    "pipes": "standard-pipes",
    "imghdr": "standard-imghdr",
    "cchardet": "cchardet",
    "backports": "",
    "tkinter": "",
    "_tkinter": "",
    "google": "",
    "azure": "",
    "src": "",
    "aiohttp_retry": "aiohttp-retry",
    "antlr4": "antlr4-python3-runtime",
    "apt": "",
    "consul": "python-consul",
    "Crypto.Cipher": "pycryptodome",
    "dbus": "dbus-python",
    "dj_database_url": "dj-database-url",
    "environ": "django-environ",
    "email_validator": "email-validator",
    "engineio": "python-engineio",
    "faiss": "faiss-cpu",
    "github": "PyGithub",
    "gitlab": "python-gitlab",
    "graphql": "graphql-core",
    "haystack": "django-haystack",
    "hamcrest": "PyHamcrest",
    "igraph": "python-igraph",
    "jenkins": "python-jenkins",
    "keystoneclient": "python-keystoneclient",
    "levenshtein": "python-Levenshtein",
    "Levenshtein": "python-Levenshtein",
    "lz4": "lz4",
    "multipart": "python-multipart",
    "mysql": "mysql-connector-python",
    "nmap": "python-nmap",
    "OpenGL": "PyOpenGL",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.semconv": "opentelemetry-semantic-conventions",
    "opentelemetry.test": "opentelemetry-test-utils",
    "pytest_lazyfixture": "pytest-lazy-fixture",
    "oauth2_provider": "django-oauth-toolkit",
    "paho": "paho-mqtt",
    "pptx": "python-pptx",
    "pwd": "",
    "pyasn1_modules": "pyasn1-modules",
    "pymysql": "PyMySQL",
    "qdrant_client": "qdrant-client",
    "rosdep": "",
    "sentry_sdk": "sentry-sdk",
    "socketio": "python-socketio",
    "speech_recognition": "SpeechRecognition",
    "sqlalchemy_utils": "SQLAlchemy-Utils",
    "stdnum": "python-stdnum",
    "telegram": "python-telegram-bot",
    "tests_common": "",
    "tlz": "toolz",
    "unidiff": "unidiff",
    "uwsgi": "",
    "utils": "",
    "helpers": "",
    "common": "",
    "vcr": "vcrpy",
    "factory": "factory-boy",
    "flask_login": "Flask-Login",
    "webob": "WebOb",
    "webtest": "WebTest",
    "xmlsec": "xmlsec",
    "ee": "earthengine-api",
    "absl": "absl-py",
    "airflow": "apache-airflow",
    "azure.storage.blob": "azure-storage-blob",
    "azure.storage.queue": "azure-storage-queue",
    "azure.storage.filedatalake": "azure-storage-file-datalake",
    "azure.keyvault.secrets": "azure-keyvault-secrets",
    "azure.keyvault.keys": "azure-keyvault-keys",
    "bson": "pymongo",
    "can": "python-can",
    "cassandra": "cassandra-driver",
    "cpuinfo": "py-cpuinfo",
    "dns": "dnspython",
    "google.api": "googleapis-common-protos",
    "google.api_core": "google-api-core",
    "google.auth": "google-auth",
    "google.cloud.extended_operations": "googleapis-common-protos",
    "google.cloud.location": "googleapis-common-protos",
    "google.genai": "google-genai",
    "google.generativeai": "google-generativeai",
    "google.iam": "grpc-google-iam-v1",
    "google.logging": "googleapis-common-protos",
    "google.longrunning": "googleapis-common-protos",
    "google.oauth2": "google-auth",
    "google.resumable_media": "google-resumable-media",
    "google.rpc": "googleapis-common-protos",
    "google.type": "googleapis-common-protos",
    "gridfs": "pymongo",
    "hcl2": "python-hcl2",
    "ignite": "pytorch-ignite",
    "markdown_it": "markdown-it-py",
    "oslo_config": "oslo.config",
    "oslo_context": "oslo.context",
    "oslo_i18n": "oslo.i18n",
    "oslo_log": "oslo.log",
    "oslo_serialization": "oslo.serialization",
    "oslo_utils": "oslo.utils",
    "osgeo": "",
    "past": "future",
    "psycopg": "psycopg[binary]",
    "pyVmomi": "pyvmomi",
    "pywt": "PyWavelets",
    "saml2": "pysaml2",
    "skopt": "scikit-optimize",
    "snowflake": "snowflake-connector-python",
    "umap": "umap-learn",
    "Xlib": "python-xlib",
}
"""Projects that are not called as their module. Empty: no project has it, or it can't be told which."""

ELSEWHERE = re.compile(r"win32\w*|pythoncom|pywintypes|_?winreg|_winapi|msvcrt|AppKit|Foundation|Quartz|objc")
"""Modules that only other operating systems have."""

NAMESPACES = {
    "google.cloud": "-",
    "azure.mgmt": "-",
    "azure": "-",
    "opentelemetry.instrumentation": "-",
    "opentelemetry.exporter": "-",
    "sphinxcontrib": "-",
    "zope": ".",
    "jaraco": ".",
    "backports": ".",
    "collective": ".",
    "plone": ".",
    "repoze": ".",
}
"""Packages that many projects share, each called as its part of them, with what its name has between the two."""

# fmt: off
OF_TESTS = frozenset([
    "mock", "nose", "parameterized", "ddt", "hypothesis", "responses", "requests_mock", "httpretty", "freezegun",
    "time_machine", "pytest_mock", "pytest_asyncio", "pytest_httpserver", "pytest_httpx", "pytest_django",
    "pytest_cases", "pytest_lazyfixture", "pytest_benchmark", "respx", "aioresponses", "aiohttp", "vcr", "betamax",
    "moto", "factory", "faker", "model_bakery", "testfixtures", "testtools", "fixtures", "pyfakefs", "webtest",
    "syrupy", "deepdiff", "approvaltests", "assertpy", "hamcrest", "expects", "sure", "flexmock", "mockito",
    "asynctest", "nose_parameterized", "trustme", "inline_snapshot", "dirty_equals", "requests", "httpx", "numpy",
    "pandas", "scipy", "yaml", "toml", "django", "flask", "pexpect", "psutil", "polyfactory", "tavern", "mocket",
    "httmock", "fakeredis", "mongomock", "unittest2", "subunit", "testscenarios", "zope.testing", "coverage", "pytz",
    "attr", "pydantic", "lxml", "bs4", "sqlalchemy", "celery", "redis", "click", "jinja2", "simplejson", "anyio",
    "trio", "uvloop", "rest_framework", "unittest_expander", "pytest_subtests", "snapshottest", "xmltodict",
    "jsonschema", "dateutil", "pkg_resources", "distutils", "six", "future", "boto3", "botocore", "matplotlib", "PIL",
    "sybil", "tornado", "twisted", "cryptography", "jwt", "toolz", "packaging",
])
# fmt: on
"""Modules whose project is worth installing because a test file imports it, before any run complains."""

_LIMIT = 400


def project_of(module: str) -> str:
    """The project that has a module (a.b.c); empty if none is known to.

    A name that is in no table is tried as the project's own name: many are. What is installed on that guess runs in
    the sandboxes of this environment only.
    """
    parts = module.split(".")
    if ELSEWHERE.fullmatch(parts[0]):
        return ""
    for count in range(min(len(parts), 3), 1, -1):
        if (name := ".".join(parts[:count])) in PROJECTS:
            return PROJECTS[name]
    for namespace, join in NAMESPACES.items():
        inner = module.removeprefix(f"{namespace}.").split(".")
        if module.startswith(f"{namespace}.") and inner[0].islower():
            return f"{namespace}.{inner[0]}".replace(".", join).replace("_", "-")
    top = parts[0]
    if top in PROJECTS:
        return PROJECTS[top]
    if top in sys.stdlib_module_names or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", top):
        return ""
    return top.replace("_", "-")


def part_of_shared(module: str) -> str:
    """Of a module below a package that many projects share, the part that is one project's; empty for others."""
    shared = {".".join(name.split(".")[:count]) for name in NAMESPACES for count in (1, 2)}
    above = max((name for name in shared if module.startswith(f"{name}.")), key=len, default="")
    return ".".join(module.split(".")[: above.count(".") + 2]) if above else ""


def local_modules(tree: SourceTree) -> set[str]:
    """Names that the tree's own modules and packages have, wherever they lie."""
    names: set[str] = set()
    for path in tree.paths:
        if path.endswith(".py"):
            parts = path.removesuffix(".py").split("/")
            names.update(parts)
    return names


def statements(text: str) -> list[ast.stmt] | None:
    """A module's outermost ones; None for what this Python cannot parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def imported_by_tests(tree: SourceTree, test_files: list[str]) -> list[str]:
    """Top-level modules that test files import outright, the tree's own and Python's left out; sorted.

    An import within a try or a function may be allowed to fail: it does not count.
    """
    own, found = local_modules(tree), set[str]()
    for path in test_files[:_LIMIT]:
        for node in statements(tree.text(path)) or []:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module]
            found.update(name.split(".")[0] for name in names)
    return sorted(name for name in found if name not in own and name not in sys.stdlib_module_names)
