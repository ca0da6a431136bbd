"""The servers that the portal starts itself are not reachable by others."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg2
import pytest
import redis
from celery import Celery
from django.core.cache import cache
from redis.exceptions import OutOfMemoryError, ResponseError

from portal.up import servers, services

LOGS = Path(os.environ.get("PORTAL_TEST_FOLDER", "")) / "log"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("INSERT INTO refused VALUES (1, 'canary-in-a-statement')", "violates unique constraint"),
        ("INSERT INTO refused VALUES (-1, 'canary-in-a-row')", "violates check constraint"),
    ],
)
def test_what_the_database_refuses_is_not_written_down(statement, said):
    with psycopg2.connect(os.environ["DATABASE_URL"]) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE refused (id int PRIMARY KEY CHECK (id > 0), env text)")
        cursor.execute("INSERT INTO refused VALUES (1, '')")
        with pytest.raises(psycopg2.IntegrityError, match=said):
            cursor.execute(statement)
    connection.close()
    log = LOGS / "postgres.log"
    assert said in log.read_text()
    assert "canary" not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def valkey(tmp_path):
    """Returns the URL of a small server for this test, in a folder whose name needs escaping in URLs."""
    folder = tmp_path / "a b%20c"
    server = servers.valkey(folder / "valkey", services.socket_folder(folder))
    with services.running([server], tmp_path, os.environ):
        yield server.url


@pytest.fixture
def own_cache(valkey, settings):
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": valkey}}
    return redis.Redis.from_url(valkey)


def test_a_full_cache_gives_up_what_it_keeps_and_never_the_queue(own_cache, valkey):
    own_cache.config_set("maxmemory", "4mb")
    own_cache.rpush("celery", *(b"x" * 1000 for _ in range(500)))
    for n in range(100):
        cache.set(f"page-{n}", "y" * 100_000, 60)
    assert cache.get("page-99") == "y" * 100_000
    assert cache.get("page-0") is None
    assert own_cache.llen("celery") == 500


def test_sign_in_works_while_valkey_is_full_or_away(own_cache, client, people):
    """No use of the cache by a page fails either."""
    people.alice.set_password("correct horse")
    people.alice.save()
    own_cache.config_set("maxmemory", "1")
    with pytest.raises(OutOfMemoryError):
        own_cache.set("x", 1)
    for _ in range(2):
        response = client.post("/accounts/login/", {"login": people.alice.username, "password": "correct horse"})
        assert (response.status_code, response["Location"]) == (302, "/")
        assert client.get("/").status_code == 200
        assert client.get("/clusters/spent").status_code == 200
        client.logout()
        with pytest.raises((redis.ConnectionError, ResponseError)):
            own_cache.shutdown(nosave=True)
            own_cache.ping()


def test_what_lies_in_the_cache_runs_nothing(own_cache):
    """A pickle that someone stored in the cache is not loaded."""
    cache.set("mine", [1.5, None, True, {"a": "b"}], 60)
    assert cache.get("mine") == [1.5, None, True, {"a": "b"}]
    (key,) = own_cache.keys()
    own_cache.set(key, b"cposix\nsystem\n(S'true'\ntR.")
    assert cache.get("mine", "missed") == "missed"
    assert cache.get_many(["mine"]) == {}


def test_queue_and_cache_are_one_server_and_the_queue_is_reached_by_an_odd_path(valkey, settings):
    """redis-py and Celery spell the URL of a Unix socket differently (portal/settings.py)."""
    ours = redis.Redis.from_url(settings.REDIS_URL).connection_pool.connection_kwargs
    told = (
        Celery(broker=settings.CELERY_BROKER_URL, set_as_current=False)
        .connection()
        .default_channel.client.connection_pool.connection_kwargs
    )
    assert (told["path"], told["db"]) == (ours["path"], ours["db"])
    odd = valkey.replace("unix:", "redis+socket:").replace("?db=0", "?virtual_host=3")
    # Keep the process's current app, or later tests would send their wake-ups to this server.
    with Celery(broker=odd, set_as_current=False).connection() as connection:
        connection.SimpleQueue("jobs").put("work")
    assert redis.Redis.from_url(valkey.replace("?db=0", "?db=3")).llen("jobs") == 1
