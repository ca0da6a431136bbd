"""Number of steps trained again after a crash, from the program's event files and the ends of its tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusters.scalars.crashes import End, Stretch, crashes, how, stretches_of, told_in
from clusters.scalars.events import MAX_POINTS, Point, Progress, Series


@given(
    gap=st.integers(1, 500),
    every=st.integers(1, 5),
    told=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    workers=st.integers(1, 4),
)
def test_what_was_trained_twice_is_what_was_told_since_the_checkpoint(
    gap: int, every: int, told: list[int], workers: int
) -> None:
    """A program reports every `gap` steps and saves a checkpoint at each `every`-th report; then all tasks die."""
    now, kept, stretches, ends, twice = 0.0, 0, [], [], 0
    for number, lines in enumerate([*told, 3]):
        begun = kept
        points = []
        for line in range(1, lines + 1):
            now += 1
            points.append((begun + line * gap, now))
            if line % every == 0:
                kept = begun + line * gap
        if points:
            stretches.append(Stretch(tuple(points)))
            if number < len(told):
                twice += points[-1][0] - kept
        if number < len(told):
            ends += [
                End("worker", index, now + 0.5 + index / 100, "by signal 9", now + 0.9) for index in range(workers)
            ]
    found = crashes(ends, stretches)
    assert sum(each.repeated or 0 for each in found) == twice
    # A crash before the first report after another crash is not counted separately.
    assert len(found) == sum(lines > 0 for lines in told[1:]) + 1
    assert all(each.others == workers - 1 and each.is_back for each in found)
    assert all(0 <= each.seconds <= now for each in found)


@given(st.lists(st.floats(1, 99), min_size=1, max_size=8), st.booleans())
def test_where_others_go_on_nothing_is_trained_twice(times: list[float], is_back: bool) -> None:
    steps = Stretch(tuple((10 * n, float(n)) for n in range(101)))
    ends = [End("worker", 0, at, "by signal 9", at + 0.01 if is_back else None) for at in times]
    for each in crashes(ends, [steps]):
        assert (each.repeated, each.seconds, each.is_back) == (0, 0.0, is_back)
        assert each.step is not None
        assert each.step < 10 * each.at <= each.step + 10


def test_the_first_that_ended_is_named_and_the_sentence_says_what_it_cost() -> None:
    ends = [End("master", 0, 11.5, "with exit code 1", 14), End("worker", 1, 11, "by signal 9", 13)]
    before, after = Stretch(((100, 5), (200, 8), (300, 10.5))), Stretch(((200, 20), (300, 22)))
    (open_,) = crashes(ends, [before])
    assert open_.sentence == "worker-1 ended by signal 9 at step 300, with 1 other task, and came back."
    (crash,) = crashes(ends, [before, after])
    assert crash.sentence == (
        "worker-1 ended by signal 9 at step 300, with 1 other task, came back, and 200 steps were trained again."
    )
    assert crash.seconds == 5.5
    # No step reported, and never restarted.
    (silent,) = crashes([End("worker", 1, 11, how(None, "Disrupted"))], [])
    assert silent.sentence == "worker-1 ended because the cloud took it away, and has not come back."
    # A task that failed twice did not come back, whether or not steps were reported before.
    twice = [End("master", 0, 11, "with exit code 7", 12), End("master", 0, 12.5, "with exit code 7")]
    assert [each.sentence for each in crashes(twice, [])] == ["master-0 failed twice (exit code 7)."]
    assert [each.sentence for each in crashes(twice, [before])] == ["master-0 failed twice (exit code 7) at step 300."]
    # Nor did one that trained the same steps again and failed as before. What they cost is told.
    (again,) = crashes(
        [End("master", 0, 11, "with exit code 1", 14), End("master", 0, 23, "with exit code 1")], [before, after]
    )
    assert again.sentence == "master-0 failed twice (exit code 1) at step 300."
    assert again.repeated == 200
    # Another way to fail, or a later step, is another crash.
    later = Stretch(((200, 20), (400, 22)))
    for how_, told in (("by signal 9", after), ("with exit code 1", later)):
        ends = [End("master", 0, 11, "with exit code 1", 14), End("master", 0, 23, how_)]
        assert len(crashes(ends, [before, told])) == 2
    # Without reported steps, each end is a crash of its own.
    assert len(crashes([End("notebook", 0, day, "by itself", day + 9) for day in (100, 200, 300)], [])) == 3
    assert [how(137, "Error"), how(1, "Error"), how(137, "OOMKilled")] == [
        "by signal 9",
        "with exit code 1",
        "because memory ran out",
    ]


def test_a_program_that_begins_anew_by_itself_has_not_crashed() -> None:
    assert crashes([], stretches_of([(1, 1.0), (9, 2.0), (1, 3.0), (9, 4.0)])) == []


def test_event_files_of_the_run_alone_count_and_long_ones_that_are_thinned_out_count_the_same() -> None:
    def file(started: float, first: int, count: int) -> Progress:
        series, once = Series(), Series()
        for n in range(count):
            series.add(Point(first + n, started + n, 0.5))
        once.add(Point(first, started, 0.5))
        return Progress(started=started, series={"loss": series, "once": once})

    most = 3 * MAX_POINTS
    files = {"a/3": file(100_000, 2501, 50), "a/2": file(1000, 1, most), "a/1": file(10, 1, 9)}
    # An evaluator counts steps in its own way.
    files |= {"b/1": file(1001, 1, 9), "b/2": file(100_001, 1, 9)}
    (crash,) = crashes([End("master", 0, 1000.5 + most, "by signal 9", 2000 + most)], told_in(files, 500))
    # Crashed at step 3,000; continued from the checkpoint of step 2,500.
    assert (crash.step, crash.repeated) == (most, most - 2500)


def test_times_that_are_none_leave_numbers_that_can_be_kept() -> None:
    def file(started: float, *times: float) -> Progress:
        series = Series()
        for step, at in enumerate(times, 1):
            series.add(Point(step, at, 0.5))
        return Progress(started=started, series={"loss": series})

    infinite, none = float("inf"), float("nan")
    files = {"a/1": file(10, 11, 12, infinite, none, 1e300), "a/2": file(20, 21, 22)}
    (crash,) = crashes([End("master", 0, 15, "by signal 9", 20)], told_in(files, 5))
    assert (crash.step, crash.repeated, crash.seconds) == (2, 2, 1)
