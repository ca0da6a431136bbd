"""The test people with real tokens, and a catalogue. Imports are local because Django is not set up yet."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def catalogue(db: None) -> None:
    from clusters.catalog.models import Flavor, Image

    Flavor.objects.create(name="middle", title="Middle", cpu_milli=1000, memory_mb=2048)
    Flavor.objects.create(name="middle-1-gpu", title="Middle + 1 GPU", cpu_milli=1000, memory_mb=2048, gpus=1)
    Image.objects.create(name="tensorflow", title="TensorFlow", environment="/usr", container="example/tensorflow:2")
    Image.objects.create(name="retired", title="Retired", environment="/usr", enabled=False)
    Image.objects.create(name="remote", title="Remote", container="example/remote:1")


@pytest.fixture
def as_alice(alice: Any, catalogue: None) -> Any:
    from tests.api.client import api_of

    return api_of(alice)


@pytest.fixture
def as_bob(bob: Any, catalogue: None) -> Any:
    from tests.api.client import api_of

    return api_of(bob)


@pytest.fixture
def as_victor(victor: Any, catalogue: None) -> Any:
    from tests.api.client import api_of

    return api_of(victor)


@pytest.fixture
def as_mallory(mallory: Any, catalogue: None) -> Any:
    from tests.api.client import api_of

    return api_of(mallory)


@pytest.fixture
def as_root(root: Any, catalogue: None) -> Any:
    from tests.api.client import api_of

    return api_of(root)


@pytest.fixture
def everybody(people: Any, catalogue: None) -> dict[str, Any]:
    """Returns clients by name: alice, bob, victor, mallory, root, and nobody (without a token)."""
    from tests.api.client import Api, api_of

    named = {name: api_of(getattr(people, name)) for name in ("alice", "bob", "victor", "mallory", "root")}
    return {**named, "nobody": Api("")}
