"""How busy the GPUs of this machine are while tasks hold them: looked at every 15 s, added up by task and minute.

`Meter` is pure arithmetic: a look stands for the time since the one before, and no more than 15 s of it, so what nobody looked at
is never made up. Minutes that are over become news with a number; the oldest are forgotten when nobody fetches them. They are
kept in memory alone: an agent that dies takes what was not fetched along, and then less of the held time was measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusters.clouds.drivers.base import GpuUse, Measurements

log = logging.getLogger(__name__)

PERIOD = 15.0
MINUTE = 60
# A day of 8 GPUs held by 8 tasks is half of that.
MOST_NEWS = 24_000
AT_ONCE = 5_000
SIMULATED = "The GPUs of this machine are simulated: there is nothing to measure."


@dataclass(frozen=True)
class Look:
    """What one GPU said: how much of the time just gone it worked, from 0 to 100, and how much of its memory is in use."""

    percent: int
    memory_mb: int


@dataclass(frozen=True)
class Holder:
    """A task with GPUs, since when (seconds since 1970) it has them, and which ones."""

    uid: str
    since: float
    gpus: tuple[str, ...]


@dataclass
class _Sum:
    """Of one task and minute: GPU-seconds looked at, and percent of them, over all its GPUs."""

    gpus: int
    seconds: float = 0.0
    percent_seconds: float = 0.0
    memory_mb: int = 0


class Meter:
    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.told = 0
        self.news: deque[GpuUse] = deque(maxlen=MOST_NEWS)
        self._last: float | None = None
        # By GPU: when it said how busy it was, and how busy.
        self._latest: dict[str, tuple[float, int]] = {}
        self._sums: dict[int, dict[str, _Sum]] = {}

    def note(self, at: float, holders: Iterable[Holder], looks: Mapping[str, Look]) -> None:
        """What was seen `at` that time. A GPU that did not answer was not measured."""
        self._latest |= {gpu: (at, look.percent) for gpu, look in looks.items()}
        before, self._last = self._last, at
        if before is None or not at - before > 0:
            before = at - PERIOD if before is None else at
        for holder in holders:
            seen = [looks[gpu] for gpu in holder.gpus if gpu in looks]
            begin = max(before, at - PERIOD, holder.since)
            if not seen or begin >= at:
                continue
            # All of it counts in the minute that most of it is in.
            sums = self._sums.setdefault(int((begin + at) / 2) // MINUTE, {})
            total = sums.setdefault(holder.uid, _Sum(len(holder.gpus)))
            total.seconds += (at - begin) * len(seen)
            total.percent_seconds += (at - begin) * sum(look.percent for look in seen)
            total.memory_mb = max(total.memory_mb, sum(look.memory_mb for look in seen))
        self._close(int(at - PERIOD) // MINUTE)

    def busy(self, gpus: Sequence[str], simulated: bool, now: float) -> int | None:
        """How busy the busiest of `gpus` was lately, from 0 to 100; None when one of them does not say so. Simulated ones do
        nothing: what uses them computes on the CPU."""
        if simulated or not gpus:
            return 0
        latest = [self._latest[gpu] for gpu in gpus if gpu in self._latest]
        recent = [percent for at, percent in latest if at > now - 2 * PERIOD]
        return max(recent) if len(recent) == len(gpus) else None

    def _close(self, current: int) -> None:
        """Minutes before `current` are over: nothing that comes can be of them."""
        for minute in sorted(each for each in self._sums if each < current):
            since = dt.datetime.fromtimestamp(minute * MINUTE, dt.UTC)
            for uid, total in sorted(self._sums.pop(minute).items()):
                busy = min(1.0, total.percent_seconds / total.seconds / 100)
                seconds = min(float(MINUTE), total.seconds / total.gpus)
                self.told += 1
                self.news.append(GpuUse(uid, since, round(seconds, 3), round(busy, 6), total.memory_mb))

    def since(self, position: str) -> Measurements:
        """The news after `position`; all that there is for one of another agent's."""
        whose, _, number = position.partition("/")
        known = int(number) if whose == self.id and number.isdecimal() else 0
        first = self.told - len(self.news)
        start = max(known - first, 0)
        items = tuple(self.news)[start : start + AT_ONCE]
        return Measurements(f"{self.id}/{max(known, first) + len(items)}", items)


async def measure(meter: Meter, holding: Callable[[], Sequence[Holder]], names: Mapping[str, str]) -> None:
    """Looks at the GPUs that are held, every 15 s, at whole quarters of a minute, as long as the agent lives; `names` are what
    NVML calls them. A GPU that hangs holds up a thread only."""
    loop = asyncio.get_running_loop()
    nvml = Nvml()
    while True:
        await asyncio.sleep(PERIOD - time.time() % PERIOD)
        holders = holding()
        held = {gpu: names[gpu] for holder in holders for gpu in holder.gpus}
        looks = await loop.run_in_executor(None, nvml.look, held) if held else {}
        meter.note(time.time(), holders, looks)


class Nvml:
    """NVIDIA's own library, opened when it is first needed and again after an error."""

    def __init__(self) -> None:
        self._open = False
        self._said = ""

    def look(self, names: Mapping[str, str]) -> dict[str, Look]:
        """What the GPUs with these UUIDs say; those that do not answer are left out. One thread at a time."""
        import pynvml

        looks: dict[str, Look] = {}
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
        except pynvml.NVMLError as error:
            self._say(f"NVML cannot be opened: {error}")
            return {}
        for gpu, uuid in names.items():
            try:
                looks[gpu] = _look(pynvml, uuid)
            except pynvml.NVMLError as error:
                self._say(f"GPU {uuid} does not say how busy it is: {error}")
                self._open = False
        if not self._open:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        return looks

    def _say(self, sentence: str) -> None:
        """Once, not every 15 s."""
        if sentence != self._said:
            self._said = sentence
            log.warning("%s", sentence)


def _look(pynvml: Any, uuid: str) -> Look:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Look(min(100, max(0, int(rates.gpu))), int(memory.used) >> 20)
