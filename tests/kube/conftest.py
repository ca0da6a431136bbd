"""The test plane: one for each test process, started for the first test that asks for it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.kube.binary import binary
from tests.kube.node import Node, running_node
from tests.kube.plane import Plane


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests on the one real node go to the same process of `pytest -n`."""
    for item in items:
        if item.get_closest_marker("node"):
            item.add_marker(pytest.mark.xdist_group("node"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds it before the first test, because a test has less time than the first build on a machine takes."""
    if not session.config.option.collectonly and any(item.get_closest_marker("kube") for item in session.items):
        binary()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane with 13 nodes of 8 GPUs each. Who stops or changes a part of it puts it back at the end."""
    plane = Plane(tmp_path_factory.mktemp("plane"))
    plane.start()
    try:
        plane.add_nodes(13)
        yield plane
        plane.check()
    finally:
        plane.stop()


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
