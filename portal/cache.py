"""The cache in Redis, which may be lost at any time: what is kept elsewhere too (sessions) is then read from there.

`get` misses, `set` and `delete` do nothing. What exists only in the cache (`add`, `incr`: counters and places in `limits`)
still raises RedisError, for only its user knows what an unknown count means.
"""

from __future__ import annotations

import logging
from typing import Any

from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


class Forgiving(RedisCache):
    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        try:
            return super().get(key, default, version)
        except RedisError as error:
            log.warning("the cache is out of reach: %s", error)
            return default

    def set(self, key: Any, value: Any, *args: Any, **options: Any) -> None:
        try:
            super().set(key, value, *args, **options)
        except RedisError as error:
            log.warning("the cache is out of reach: %s", error)

    def delete(self, key: Any, version: int | None = None) -> bool:
        try:
            return super().delete(key, version)
        except RedisError as error:
            log.warning("the cache is out of reach: %s", error)
            return False

    def has_key(self, key: Any, version: int | None = None) -> bool:
        try:
            return super().has_key(key, version)
        except RedisError as error:
            log.warning("the cache is out of reach: %s", error)
            return False
