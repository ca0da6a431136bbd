"""One service, one router and its replicas, created for each test that requests them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.clusters.router.routers import Router, World


@pytest.fixture
def world(transactional_db: None, tmp_path: Path) -> Iterator[World]:
    from tests.clusters.router.routers import World  # models, which need the settings

    world = World(tmp_path)
    yield world
    world.end()


@pytest.fixture
def router(world: World, tmp_path: Path) -> Iterator[Router]:
    """Starts before the replicas, so it learns of all that a test creates by notification."""
    from tests.clusters.router.routers import Router

    router = Router(tmp_path)
    router.until(router.ready)
    yield router
    router.process.kill()
    router.process.wait()
    said = router.log.read_text()
    assert "Traceback" not in said, said[-3000:]
    assert "gps_" not in said
