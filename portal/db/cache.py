"""A Redis cache that tolerates a lost or full Redis: no user action fails because of it.

Without Redis, reads miss, writes are dropped, and `add` returns True. So rate limits, including those of sign-in, do
not apply while it is down, but nobody is locked out. Only `incr` raises, because it has no number to return. Values are
JSON, not pickles: write access to the cache must not allow code execution.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import orjson
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class Json:
    """Serialises values; integers stay as they are, for Redis to count."""

    def dumps(self, value: Any) -> Any:
        return value if type(value) is int else orjson.dumps(value)

    def loads(self, data: bytes) -> Any:
        return orjson.loads(data)


class Forgiving(RedisCache):
    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        return _tried(lambda: super(Forgiving, self).get(key, default, version), default)

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        return _tried(lambda: super(Forgiving, self).get_many(keys, version), {})

    def has_key(self, key: Any, version: int | None = None) -> bool:
        return _tried(lambda: super(Forgiving, self).has_key(key, version), False)

    def add(self, key: Any, value: Any, *args: Any, **options: Any) -> bool:
        return _tried(lambda: super(Forgiving, self).add(key, value, *args, **options), True)

    def set(self, key: Any, value: Any, *args: Any, **options: Any) -> None:
        _tried(lambda: super(Forgiving, self).set(key, value, *args, **options), None)

    def set_many(self, data: dict[Any, Any], *args: Any, **options: Any) -> list[Any]:
        return _tried(lambda: super(Forgiving, self).set_many(data, *args, **options), list(data))

    def delete(self, key: Any, version: int | None = None) -> bool:
        return _tried(lambda: super(Forgiving, self).delete(key, version), False)


def _tried(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    try:
        return ask()
    except RedisError as error:
        log.warning("the cache is out of reach: %s", error)
    except orjson.JSONDecodeError:
        # Written by another version of the portal.
        log.info("a value of the cache cannot be read")
    return otherwise
