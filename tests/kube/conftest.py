"""The test plane: one per test process, started for the first test that uses it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from clusters.clouds.drivers.kubernetes.api import client
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.watch import follower
from tests.kube import helm, images, layers
from tests.kube.binary import binary
from tests.kube.following import Following, cloud_of
from tests.kube.node import Node, running_node
from tests.kube.plane import Plane

NODES = 13


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Distributes the tests over the processes of `pytest -n`. Tests on the plane share two processes, because each process
    has its own plane, and those of a whole portal mostly wait. Tests on a real node are grouped by file; each process has
    one node."""
    for item in items:
        if item.get_closest_marker("kube") and not item.get_closest_marker("node"):
            whole = "people" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("kube-portal" if whole else "kube-cloud"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds programs before the first test, because the first build may take longer than a test's timeout."""
    if session.config.option.collectonly:
        return
    if any(item.get_closest_marker("kube") for item in session.items):
        binary()
    if any("helm" in getattr(item, "fixturenames", ()) for item in session.items):
        helm.program()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane with NODES nodes of 8 GPUs each, shared by all tests of the process (see `as_it_was`)."""
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
    """Restores the nodes of the plane after each test, however it ended.

    This fixture is set up before all others of a test and therefore torn down last, when its runs have ended. All other
    objects have names that are unique to a test.
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
    """Shortens the interval at which followers check whether to stop, because the end of a test waits for it."""
    monkeypatch.setattr(follower, "HEARTBEAT", 0.5)


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the timeouts of silent and refused watches from 15 s to a few seconds."""
    monkeypatch.setattr(client, "WATCH_SECONDS", 3)
    monkeypatch.setattr(client, "WATCH_TIMEOUT", client.urllib3.Timeout(connect=3.0, read=5.0))
    monkeypatch.setattr(follower, "SILENT", 5.0)
    monkeypatch.setattr(follower, "PATIENCE", 3.0)


@pytest.fixture
def namespace(plane: Plane) -> Iterator[str]:
    """Creates a namespace, and deletes it at the end without waiting."""
    name = plane.make_namespace(f"test-{secrets.token_hex(4)}")
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def cloud(plane: Plane) -> KubernetesCloud:
    """A separate portal per test, which sees no objects of the others."""
    return cloud_of(plane, f"test-{secrets.token_hex(4)}")


@pytest.fixture
def following(cloud: KubernetesCloud) -> Iterator[Following]:
    with Following(cloud) as following:
        yield following


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A real node and its own control plane, `node.plane`. Images that the selected tests use are unpacked first (marker
    `images`)."""
    wanted = {name for item in request.session.items for mark in item.iter_markers("images") for name in mark.args}
    layers.unpack([images.image(name) for name in images.TAGS if name in wanted])
    with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node
