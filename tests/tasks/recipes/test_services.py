"""The service that stands for the sites that Sphinx's tests have links to."""

import json
from pathlib import Path

import pytest

from minisandbox_ray.environments import EnvSpec, NodeStore, build_environment
from minisandbox_ray.environments.services import open_sandbox
from minisandbox_ray.errors import BuildError
from minisandbox_ray.tasks.recipes.services import SITES, services_of

ASK = """\
import json, ssl, sys, urllib.error, urllib.request
trust = ssl.create_default_context(cadata=sys.stdin.read())

def ask(url):
    try:
        with urllib.request.urlopen(url, context=trust) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except urllib.error.URLError as error:
        return 0, str(error.reason)

print(json.dumps([ask(url) for url in sys.argv[1:]]))
"""


def test_sites_answer_by_http_and_https(sandboxes: None, tmp_path: Path) -> None:
    archives, store = tmp_path / "archives", NodeStore(tmp_path / "store")
    try:
        manifest = build_environment(EnvSpec(services=[SITES]), archives, store)
    except BuildError as error:
        pytest.skip(f"no environment: {str(error).splitlines()[0]}")
    with store.use(manifest.digest, archives) as env, open_sandbox(env) as sandbox:
        home = "/opt/services/sites"
        authority = sandbox.execute([f"{home}/bin/python", f"{home}/files/authority.py"]).stdout
        links = ["http://www.sphinx-doc.org/a#b", "https://www.w3.org/TR/", "https://www.google.com/image.png"]
        done = sandbox.execute(["/venv/bin/python", "-c", ASK, *links, "https://localhost/"], stdin=authority)
        plain, secure, picture, stranger = json.loads(done.stdout)
    assert plain == secure and secure[0] == 200 and "id='defaulting'" in secure[1]
    assert picture == [404, ""]
    assert stranger[0] == 0 and "CERTIFICATE_VERIFY_FAILED" in stranger[1]


def test_only_the_link_checker_has_them() -> None:
    repository = "sphinx-doc/sphinx"
    assert services_of(repository, ["tests/test_build_linkcheck.py"]) == [SITES]
    assert services_of(repository, ["tests/test_build_html.py"]) == []
