"""Real node agents, of whoever runs the tests; where that makes a difference, of an ordinary user too."""

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
    """Whoever runs the tests."""
    return Home(Path(sysconfig.get_path("scripts")), sys.executable, ROOT, sys.prefix, None)


@pytest.fixture(scope="session")
def user_home() -> Iterator[Home]:
    """An ordinary user with an interpreter, code and rclone of its own (what root has may not be readable for others)."""
    folder = Path(tempfile.mkdtemp(prefix="elearn-user-"))
    folder.chmod(0o755)
    try:
        base, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
        # What is being compiled at this moment (*.pyc.123) has another name in the next.
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
        shutil.copytree(ROOT / "clusters" / "clouds", folder / "code" / "clusters" / "clouds", ignore=passing)
        (folder / "code" / "clusters" / "__init__.py").touch()
        shutil.copy(ROOT / "clusters" / "attempts.py", folder / "code" / "clusters")
        (folder / "code" / "datastores").mkdir()
        for module in ("__init__.py", "listing.py", "trees.py"):
            shutil.copy(ROOT / "datastores" / module, folder / "code" / "datastores")
        (folder / "code" / "portal").mkdir()
        shutil.copy(ROOT / "portal" / "outgoing.py", folder / "code" / "portal")
        compileall.compile_dir(folder / "code", quiet=1)  # this user may not write there
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
    """Whoever runs the tests, or (`as_user`) an ordinary user."""
    home: Home = request.getfixturevalue(f"{request.param}_home")
    return home


@pytest.fixture
def make_agent(home: Home) -> Iterator[Agents]:
    """Agents of the test's own."""
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
    """One without options, which other tests have used before."""
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
        # While output can still be stored.
        make_agent.close()
        kept.rest()
    finally:
        store.stop()
