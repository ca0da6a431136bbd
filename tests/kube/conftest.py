"""The test plane: one for each test process, started for the first test that asks for it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from clusters.clouds.drivers.kubernetes.api import client
from clusters.clouds.drivers.kubernetes.watch import follower
from tests.kube.binary import binary
from tests.kube.node import Node, running_node
from tests.kube.plane import Plane

NODES = 13


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those on the plane go to two processes of `pytest -n`, for each has a plane of its own, and most of the time of those with
    a whole portal is waiting. Those on a real node go by their files, and each process has a node."""
    for item in items:
        if item.get_closest_marker("kube") and not item.get_closest_marker("node"):
            whole = "people" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("kube-portal" if whole else "kube-cloud"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds it before the first test, because a test has less time than the first build on a machine takes."""
    if not session.config.option.collectonly and any(item.get_closest_marker("kube") for item in session.items):
        binary()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane with NODES nodes of 8 GPUs each, shared by all tests of the process: see `as_it_was`."""
    plane = Plane(tmp_path_factory.mktemp("plane"))
    plane.start()
    try:
        plane.add_nodes(NODES)
        yield plane
        plane.check()
    finally:
        plane.stop()


@pytest.fixture(autouse=True)
def as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test has done to the nodes of a plane, and however it ended, the next one finds the nodes that were there.

    It is set up before all else that a test has of its own, so it is torn down after that: runs have ended by then. All other
    things have names that no other test knows.
    """
    if "plane" not in request.fixturenames:
        yield
        return
    plane: Plane = request.getfixturevalue("plane")
    nodes = plane.nodes()
    yield
    plane.put_back(nodes)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows a cluster and is told to stop looks so often, which is what the end of a test waits for."""
    monkeypatch.setattr(follower, "HEARTBEAT", 0.5)


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a watch is silent, or cannot be begun, is noticed after seconds, where it takes a quarter of a minute otherwise."""
    monkeypatch.setattr(client, "WATCH_SECONDS", 3)
    monkeypatch.setattr(client, "WATCH_TIMEOUT", client.urllib3.Timeout(connect=3.0, read=5.0))
    monkeypatch.setattr(follower, "SILENT", 5.0)
    monkeypatch.setattr(follower, "PATIENCE", 3.0)


@pytest.fixture
def namespace(plane: Plane) -> Iterator[str]:
    """A new namespace. It is deleted at the end; nobody waits for that."""
    name = plane.make_namespace(f"test-{secrets.token_hex(4)}")
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A control plane of its own (`node.plane`) whose only node is a real one."""
    with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node
