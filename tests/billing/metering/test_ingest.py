"""The database turns sightings into what `segments.segment_of` computes, to the last field."""

import datetime as dt
import hashlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from django.db import OperationalError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.metering import record as metering_record
from billing.metering.segments import PodState, segment_of
from billing.models import Observation, UsageSegment

T0 = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
ZONES = (dt.UTC, dt.timezone(dt.timedelta(hours=8)), dt.timezone(-dt.timedelta(hours=3, minutes=30)))

# Times around T0 with fractions of seconds, times near the tolerated clock skew, and times far beyond it.
moments = st.one_of(
    st.integers(-30, 30).map(lambda n: T0 + dt.timedelta(seconds=n / 4)),
    st.integers(-1000, 1000).map(lambda n: T0 + dt.timedelta(seconds=n)),
    st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2090, 1, 1), timezones=st.sampled_from(ZONES)),  # noqa: DTZ001
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
labels = st.dictionaries(
    st.sampled_from(["role", "run", "class", 'a"b\\']),
    st.one_of(texts, st.just("spare"), st.integers(-9, 9) | st.just(2**70)),
    max_size=2,
)
states = st.builds(
    PodState,
    uid=st.sampled_from(["p-1", "p-2", 'p,"3"\\N']),
    cloud=st.sampled_from(["local", "a\tb\\%s\n"]),
    appcode_id=st.just(0),
    consumer=texts,
    labels=labels,
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    gpus=st.integers(0, 2),
    gpu_model=st.sampled_from(["", "A100", "\\N"]),
    cpu_milli=st.sampled_from([0, 1000]),
    memory_mb=st.sampled_from([0, 1024]),
    scheduled_at=st.none() | moments,
    started_at=st.none() | moments,
    finished_at=st.none() | moments,
    estimated=st.booleans(),
    storage_mb=st.sampled_from([0, 5]),
)
batches = st.lists(st.tuples(moments, st.lists(states, max_size=6)), min_size=1, max_size=4)


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(batches)
def test_the_database_adds_up_as_the_pure_function_does(ops, drawn):
    with transaction.atomic():
        kept: dict[tuple[str, str], PodState] = {}
        for seen_at, batch in drawn:
            told = [replace(state, appcode_id=ops.pk) for state in batch]
            metering_record.record(told, seen_at=seen_at)
            for state in told:
                kept.setdefault((state.uid, state.digest), replace(state, seen_at=seen_at))
        pods: dict[str, list[PodState]] = {}
        for state in kept.values():
            pods.setdefault(state.uid, []).append(state)
        made = {uid: segment for uid, seen in pods.items() if (segment := segment_of(seen))}
        assert {row.uid: row.segment for row in UsageSegment.objects.all()} == made
        assert {(row.uid, row.digest): row.state for row in Observation.objects.all()} == kept
        transaction.set_rollback(True)


@given(states, st.booleans())
def test_a_digest_is_of_json_in_ascii_with_sorted_keys(state, far):
    """The way to compute a digest may change, but digests of years ago must stay equal."""
    state = replace(state, appcode_id=2**70) if far else state
    times = [t and t.astimezone(dt.UTC).isoformat() for t in (state.scheduled_at, state.started_at, state.finished_at)]
    amounts = [state.gpus, state.gpu_model, state.cpu_milli, state.memory_mb, *filter(None, [state.storage_mb])]
    parts = [
        state.uid, state.cloud, state.appcode_id, state.consumer, dict(state.labels), state.phase, *amounts, *times,
        state.estimated,
    ]  # fmt: skip
    said = json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()
    assert state.digest == hashlib.sha256(said).hexdigest()


def test_one_transaction_may_record_twice(ops):
    first, second = (
        PodState(uid, "local", ops.pk, "run 1", {}, "Running", 1, started_at=T0, seen_at=T0) for uid in ("p-1", "p-2")
    )
    with transaction.atomic():
        metering_record.record([first], seen_at=T0)
        metering_record.record([second], seen_at=T0 + dt.timedelta(seconds=1))
    assert [row.state.seen_at for row in Observation.objects.order_by("uid")] == [T0, T0 + dt.timedelta(seconds=1)]


@pytest.mark.django_db(transaction=True)
def test_sightings_of_one_cloud_wait_for_each_other_and_for_nobody_else(ops):
    """Two transactions each saw one half of a pod: the later one must see what the earlier one wrote meanwhile."""
    begun = PodState("p-1", "local", ops.pk, "run 1", {}, "Running", 1, started_at=T0)
    ended = replace(begun, phase="Succeeded", started_at=None, finished_at=T0 + dt.timedelta(seconds=9))
    elsewhere = replace(begun, uid="p-2", cloud="kubernetes")
    failures: list[BaseException] = []

    def later() -> None:
        try:
            record(ended)
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            connection.close()

    def record(state: PodState) -> None:
        with transaction.atomic():
            metering_record.record([state], seen_at=T0)

    def waiting() -> int:
        with other.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = hashtext('local')"
                # Other test processes use other databases of this server.
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            return cursor.fetchone()[0]

    other = connection.copy()
    try:
        with transaction.atomic():
            metering_record.record([begun], seen_at=T0)
            thread = threading.Thread(target=later)
            thread.start()
            while thread.is_alive() and not waiting():
                thread.join(0.05)
            assert waiting() == 1
            in_thread(lambda: record(elsewhere))
            with pytest.raises(OperationalError, match="lock timeout"):
                in_thread(impatient)
        thread.join(60)
    finally:
        other.close()
    assert not failures
    segment = UsageSegment.objects.get(uid="p-1")
    assert (segment.started, segment.ended) == (T0, T0 + dt.timedelta(seconds=9))
    assert UsageSegment.objects.filter(uid="p-2").exists()


def impatient() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '50ms'")
        metering_record.keep_others_out()


def in_thread(work: Callable[[], None]) -> None:
    """Runs `work` in a thread with its own connection. Raises its exception."""

    def alone() -> None:
        try:
            work()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(alone).result(60)
