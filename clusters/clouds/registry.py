"""Which cloud runs what. One machine has one cloud; the name is kept with everything that was seen on it."""

from __future__ import annotations

from functools import lru_cache

from django.conf import settings

from clusters.clouds.base import Cloud
from clusters.clouds.local.cloud import LocalCloud


@lru_cache(maxsize=1)
def cloud() -> Cloud:
    """The cloud of this installation. The object is cheap and holds no connection between calls."""
    return LocalCloud(settings.LOCAL_CLOUD_SOCKET)
