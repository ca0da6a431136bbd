"""Real node agents, of the user who runs the tests and, where it matters, also of an ordinary user."""

from __future__ import annotations

import compileall
import os
import secrets
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.clouds.local.agents import ROOT, USER, Agent, Agents, Home, Kept, Store


@pytest.fixture(scope="session")
def native_home() -> Home:
    """The user who runs the tests."""
    return Home(Path(sysconfig.get_path("scripts")), sys.executable, ROOT, sys.prefix, None)


@pytest.fixture(scope="session")
def user_home() -> Iterator[Home]:
    """An ordinary user with copies of interpreter, code and rclone, as root's may not be readable for others."""
    folder = Path(tempfile.mkdtemp(prefix="elearn-user-"))
    folder.chmod(0o755)
    try:
        base, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
        # A concurrent compilation writes *.pyc.123 and renames it.
        passing = shutil.ignore_patterns("*.pyc.*")
        ignore = shutil.ignore_patterns(
            "site-packages", "dist-packages", "test", "idlelib", "config-*", "*.a", "*.pyc.*"
        )
        (folder / "bin").mkdir()
        shutil.copytree(base / "lib" / version, folder / "lib" / version, ignore=ignore)
        for library in (base / "lib").glob("libpython*"):
            shutil.copy(library, folder / "lib")
        python = shutil.copy(os.path.realpath(sys.executable), folder / "bin" / "python3")
        for program in ("rclone", "uv"):
            shutil.copy(Path(sysconfig.get_path("scripts")) / program, folder / "bin" / program)
        for room in ("admission", "clouds"):
            shutil.copytree(ROOT / "clusters" / room, folder / "code" / "clusters" / room, ignore=passing)
        (folder / "code" / "clusters" / "__init__.py").touch()
        (folder / "code" / "datastores").mkdir()
        for module in ("__init__.py", "listing.py", "trees.py"):
            shutil.copy(ROOT / "datastores" / module, folder / "code" / "datastores")
        (folder / "code" / "portal" / "network").mkdir(parents=True)
        shutil.copy(ROOT / "portal" / "network" / "outgoing.py", folder / "code" / "portal" / "network")
        compileall.compile_dir(folder / "code", quiet=1)  # this user can't write there
        environment = folder / "environment"
        (environment / "bin").mkdir(parents=True)
        (environment / "bin" / "python").symlink_to(python)
        (environment / "pyvenv.cfg").write_text(f"home = {folder}/bin\n")
        yield Home(folder, str(python), folder / "code", str(environment), USER)
    finally:
        shutil.rmtree(folder)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "as_user: also with an ordinary user's agent, when root runs the tests")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "home" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("as_user") and os.geteuid() == 0
        metafunc.parametrize("home", ["native", "user"] if both else ["native"], indirect=True)


@pytest.fixture
def home(request: pytest.FixtureRequest) -> Home:
    """The user who runs the tests, or (`as_user`) an ordinary user."""
    home: Home = request.getfixturevalue(f"{request.param}_home")
    return home


@pytest.fixture
def make_agent(home: Home) -> Iterator[Agents]:
    """Creates agents for this test alone."""
    agents = Agents(home)
    yield agents
    agents.close()


@pytest.fixture(scope="session")
def kept() -> Iterator[Kept]:
    kept = Kept()
    yield kept
    kept.close()


@pytest.fixture
def agent(home: Home, kept: Kept) -> Iterator[Agent]:
    """An agent without options, shared with other tests."""
    yield kept.of(home)
    kept.rest()


@pytest.fixture
def store(tmp_path: Path, make_agent: Agents, kept: Kept) -> Iterator[Store]:
    """A real S3 server (rclone) on a folder with the empty buckets `data` and `results`."""
    store = Store(tmp_path / "s3", "KEY" + secrets.token_hex(8), secrets.token_hex(20))
    for bucket in ("data", "results"):
        (store.folder / bucket).mkdir(parents=True)
    store.start()
    try:
        yield store
        if not store.runs:
            store.start()
        # End the tasks while their output can still be stored.
        make_agent.close()
        kept.rest()
    finally:
        store.stop()
