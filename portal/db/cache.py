"""The cache in Redis, which may be lost or full at any time: nothing that people do fails for want of it.

What is read of it is read from its source then, what is written is gone, and `add` says yes: what is counted or locked is not,
which costs a limit for as long as the cache is away (those of sign-in included) and never locks people out. Only `incr` raises,
because it has no number to give. Values are JSON: whoever could write to the cache could not make the portal run anything.
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
    """Bytes of values, integers as Redis itself counts them."""

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
        # What another version of the portal wrote.
        log.info("a value of the cache cannot be read")
    return otherwise
