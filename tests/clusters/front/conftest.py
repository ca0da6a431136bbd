"""One service, one front and its replicas, anew for each test that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.clusters.front.fronts import Front, World


@pytest.fixture
def world(transactional_db: None, tmp_path: Path) -> Iterator[World]:
    from tests.clusters.front.fronts import World  # models, for which the settings have to be read

    world = World(tmp_path)
    yield world
    world.end()


@pytest.fixture
def front(world: World, tmp_path: Path) -> Iterator[Front]:
    """It runs before the replicas do: what a test makes, it has to hear of."""
    from tests.clusters.front.fronts import Front

    front = Front(tmp_path)
    front.until(front.ready)
    yield front
    front.process.kill()
    front.process.wait()
    said = front.log.read_text()
    assert "Traceback" not in said, said[-3000:]
    assert "gps_" not in said
