"""One version, said everywhere: by the command, to browsers and programs, and in what packages the portal."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
from django.test import Client

from portal import __version__
from tests.running import ROOT


def test_it_is_a_version_of_semver() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "portal.__version__"}


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_command_needs_no_settings(words: list[str]) -> None:
    argv = [sys.executable, "manage.py", *words]
    done = subprocess.run(argv, cwd=ROOT, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


@pytest.mark.django_db
def test_pages_show_it_to_everybody(client: Client, people: object) -> None:
    assert f"GPU cloud {__version__}" in client.get("/accounts/login/").content.decode()
    client.force_login(people.alice)  # type: ignore[attr-defined]
    assert f"GPU cloud {__version__}" in client.get("/appcodes").content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer gone"}])
def test_rest_says_it_to_everybody(client: Client, headers: dict[str, str]) -> None:
    answer = client.get("/api/v1/version", headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"version": __version__, "api": "v1"})
    assert client.get("/api/v1/version?x=1").status_code == 422
