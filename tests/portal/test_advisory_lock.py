"""Advisory locks of PostgreSQL, held by sessions and transactions, let one process work at a time."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection, transaction

from portal.db.advisory_lock import Lock, advisory_lock, lock_until_commit

pytestmark = pytest.mark.django_db(transaction=True)


def elsewhere(ask: Callable[[], object]) -> object:
    """Returns the result of the call in another thread, which has its own connection."""
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(ask())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return answers[0]


def is_free(lock: Lock, part: str = "", seconds: float = 0) -> bool:
    def ask() -> bool:
        with advisory_lock(lock, part, seconds=seconds) as held:
            return held

    return bool(elsewhere(ask))


def test_one_session_has_a_lock_for_a_block() -> None:
    with advisory_lock(Lock.PURGE) as held:
        assert held
        assert not is_free(Lock.PURGE)
        assert is_free(Lock.WEBHOOKS)
        assert is_free(Lock.PURGE, "a part")
    assert is_free(Lock.PURGE)


def test_parts_do_not_meet_and_the_lock_goes_with_an_error() -> None:
    with pytest.raises(ValueError, match="mine"), advisory_lock(Lock.FOLLOWER, "here", seconds=1) as held:
        assert held
        assert not is_free(Lock.FOLLOWER, "here")
        assert is_free(Lock.FOLLOWER, "there")
        raise ValueError("mine")
    assert is_free(Lock.FOLLOWER, "here")


def test_who_waits_gets_it_when_it_is_free_and_gives_up_in_time() -> None:
    with advisory_lock(Lock.FOLLOWER, "here"):
        began = time.monotonic()
        assert not is_free(Lock.FOLLOWER, "here", seconds=0.2)
        assert 0.2 <= time.monotonic() - began < 10
        taken: list[bool] = []
        waiting = threading.Thread(target=lambda: taken.append(is_free(Lock.FOLLOWER, "here", seconds=30)))
        waiting.start()
    waiting.join(30)
    assert taken == [True]


def test_the_limit_of_waiting_ends_with_it() -> None:
    with advisory_lock(Lock.FOLLOWER, "here", seconds=0.2), connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)


def test_a_lost_connection_loses_the_lock_and_says_nothing_more() -> None:
    with advisory_lock(Lock.PURGE) as held:
        assert held
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (mine,) = cursor.fetchone()

        def end() -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [mine])

        elsewhere(end)
        assert is_free(Lock.PURGE)
    connection.close()


def test_a_transaction_has_a_lock_until_it_ends() -> None:
    with transaction.atomic():
        lock_until_commit(Lock.POSTING, shared=True)
        lock_until_commit(Lock.POSTING_SHARD, "0")
        assert not is_free(Lock.POSTING)
        assert not is_free(Lock.POSTING_SHARD, "0")

        def share() -> bool:
            with transaction.atomic():
                lock_until_commit(Lock.POSTING, shared=True)
                return True

        assert elsewhere(share)
    assert is_free(Lock.POSTING)
    assert is_free(Lock.POSTING_SHARD, "0")


def test_triggers_take_the_locks_that_they_name() -> None:
    texts = "".join(path.read_text() for path in Path(settings.BASE_DIR).glob("*/sql/*.sql"))
    taken = re.findall(r"pg_\w*advisory\w*\((\d+)\);(?: -- (\w+))?", texts)
    assert taken
    assert all(Lock[name] == int(number) for number, name in taken)
    assert len(taken) == len(re.findall("advisory_xact", texts))
