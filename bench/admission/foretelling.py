"""How good forecasts are in the simulated cloud: each run of a sample is told a time when it is submitted, "now" or a forecast by
`clusters/admission/forecast.py`, and then what happens is compared.

The run times of ended runs are those of other runs that the same generator drew. Who knows how long runs with each time limit
last, from 30 times as many, and not how long each does, is the bound: the best single number that these replays allow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.admission.traces import Job, eights, generated
from bench.admission.virtual import TO_BEGIN, TO_END, Cloud, Run
from bench.results import Result
from bench.sizes import size
from clusters.admission.decision import Ask
from clusters.admission.forecast import History, Kind, Length, Likely, Living, Scene, drawn, forecast, starts
from clusters.admission.packing import Layout

SEED = 31
NODES, JOBS, SAMPLED = size(24, 6), size(600, 120), size(60, 4)
ENDED, MANY = size(1000, 100), size(30_000, 1000)
REPLAYS = 8
NEAR, HORIZON = 600, 4 * 7 * 86_400


def scene_of(cloud: Cloud) -> Scene:
    """The simulated cloud as it is now."""
    seen, begins = cloud.snapshot(), cloud.now + TO_BEGIN + TO_END
    living = []
    for run in (run for each in cloud.appcodes.values() for run in each.holding.values()):
        limit = run.job.limit
        ask = Ask(run.name, run.appcode, run.job.tasks, priority_class=run.priority_class, ends=begins + limit)
        living.append(Living(ask, run.nodes, run.began, run.began + limit + TO_END, run.ending, returns=True))
    return Scene(cloud.now, seen.nodes, seen.asks, seen.shares, tuple(living))


@dataclass(frozen=True)
class _Told:
    """A forecast made `at` that moment, and when the run starts by run times that are drawn from what they truly are."""

    at: int
    likely: Likely
    truly: Sequence[int]

    @property
    def best(self) -> float:
        """The largest part of these starts that are near one number."""
        return max(bisect_right(self.truly, each + 2 * NEAR) - i for i, each in enumerate(self.truly)) / len(self.truly)


class _Noting(Cloud):
    """Notes when each run starts first."""

    def __init__(self, *args: object, **facts: object) -> None:
        super().__init__(*args, **facts)  # type: ignore[arg-type]
        self.began: dict[int, int] = {}

    def _start(self, run: Run, layout: Layout) -> None:
        super()._start(run, layout)
        self.began.setdefault(run.number, self.now)


def results() -> list[Result]:
    trace = generated("forecasts", SEED, JOBS, eights(NODES), 1.0)
    ended = generated("ended", SEED + 1, MANY, trace.nodes, 1.0).jobs
    known = History((_kind(job), job.seconds) for job in ended[:ENDED])
    truth = History((_kind(job, job.limit), job.seconds) for job in ended)
    cloud = _Noting(trace)
    for job in trace.jobs:
        cloud.submit(job)
    now, told = 0, dict[int, _Told]()
    # Not those that come to an empty cloud.
    for number in range(JOBS // 4, JOBS, JOBS * 3 // 4 // SAMPLED):
        cloud.advance(trace.jobs[number].at + cloud.tick)
        now += number in cloud.began
        if number in cloud.waiting and number not in cloud.began:
            scene, name = scene_of(cloud), str(number)
            likely = forecast(scene, _draws(cloud, scene, known), HORIZON).get(name)
            each = (starts(scene, seconds, HORIZON).get(name) for seconds in _draws(cloud, scene, truth, exact=True))
            truly = sorted(at for at in each if at is not None)
            if likely and truly:
                told[number] = _Told(scene.at, likely, truly)
    cloud.advance()
    return _compared(now, told, cloud.began)


def _compared(now: int, told: Mapping[int, _Told], began: Mapping[int, int]) -> list[Result]:
    far = sum(abs(began[number] - each.likely.p50) > NEAR for number, each in told.items())
    unknowable = sum(1 - each.best for each in told.values())
    in_time = sum(began[number] <= each.likely.p90 for number, each in told.items())
    waited, every = max(1, len(told)), max(1, len(told) + now)
    return [
        Result("Submissions that were told a time, 'now' included", every, ""),
        Result("Of these, told that they start now", now / every * 100, "%"),
        Result("Of all, not started within 10 min of the probable time", far / every * 100, "%", 25, unknowable / every * 100),
        Result("Of those told to wait, the same (floor: the best number of who knows how long runs last, not how long each)",
               far / waited * 100, "%", None, unknowable / waited * 100),
        Result("Of those told to wait, not started by the likely time", (1 - in_time / waited) * 100, "%", 15),
    ]  # fmt: skip


def _kind(job: Job, like: int = 0) -> Kind:
    return Kind(like, like, job.gpus, job.limit)


def _draws(cloud: Cloud, scene: Scene, history: History, *, exact: bool = False) -> Iterator[Mapping[str, int]]:
    def length(run: Run, age: int = 0) -> Length:
        return Length(history.lasted(_kind(run.job, run.job.limit if exact else -1), age), age, run.job.limit)

    lengths = {run.name: length(run) for run in cloud.waiting.values()}
    lengths |= {each.ask.run: length(cloud.holder(each.ask.run), scene.at - each.since) for each in scene.living}
    return drawn(lengths, SEED, REPLAYS)
