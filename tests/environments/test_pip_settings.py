from pathlib import Path

import pytest

from minisandbox_ray.environments.pip_settings import host_pip_settings


def test_only_the_allow_list_passes_and_its_files_are_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    index, wheels = tmp_path / "mirror/simple", tmp_path / "wheels"
    index.mkdir(parents=True)
    wheels.mkdir()
    certificate = tmp_path / "ca.pem"
    certificate.write_text("")
    (tmp_path / "pip.conf").write_text(
        f"[global]\nextra-index-url = {index.as_uri()}\nfind-links = /overridden\nprogress-bar = off\n"
        "[install]\nno-index = true\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CERT", str(certificate))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:hidden@example.org/simple")
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("SOME_TOKEN", "hidden")
    settings = host_pip_settings()
    assert settings.variables["PIP_FIND_LINKS"] == str(wheels)
    assert index.as_uri() in settings.variables["PIP_EXTRA_INDEX_URL"]
    assert settings.variables["PIP_NO_INDEX"] == "true"
    assert not {"PIP_TARGET", "PIP_PROGRESS_BAR", "SOME_TOKEN"} & set(settings.variables)
    targets = {bind.target for bind in settings.binds}
    assert {str(wheels), str(certificate), str(index.parent)} <= targets
    assert str(index) not in targets  # lies below its parent, which is bound
    assert not any(bind.writable for bind in settings.binds)
    assert "hidden" not in repr(settings)
    assert "hidden" not in settings.redact("Looking in https://user:hidden@example.org/simple")
