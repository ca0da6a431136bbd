from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import chromium
from tests.running import Portal


@pytest.fixture(scope="session")
def without_show1(portal_up: Portal) -> None:
    """For tests that share a portal with none that looks at the demonstration's own cluster."""
    portal_up.end_show1()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser
