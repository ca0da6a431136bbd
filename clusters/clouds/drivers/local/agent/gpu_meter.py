"""Utilization of this machine's GPUs while tasks hold them: sampled every 10 s, summed by task and minute.

`Meter` is pure arithmetic. A sample stands for the time since the previous one, at most 10 s, so unobserved time is never
invented. Complete minutes become numbered news; the oldest are dropped if nobody reads them. They are in memory only: an agent
that dies loses the unread ones, and less of the held time was measured.
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
from functools import partial
from typing import Any

from clusters.clouds.drivers.base import GpuUse, Measurements

log = logging.getLogger(__name__)

PERIOD = 10.0
MINUTE = 60
# Twice a day's news of 8 GPUs held by 8 tasks.
MOST_NEWS = 24_000
AT_ONCE = 5_000
SIMULATED = "The GPUs of this machine are simulated: there is nothing to measure."


@dataclass(frozen=True)
class Look:
    """One sample of a GPU: utilization since the previous one (0 to 100), and memory in use."""

    percent: int
    memory_mb: int


@dataclass(frozen=True)
class Holder:
    """A task with GPUs: since when it holds them (seconds since 1970), and which."""

    uid: str
    since: float
    gpus: tuple[str, ...]


@dataclass
class _Sum:
    """Sums of one task and minute over all its GPUs: sampled GPU-seconds, and percent × seconds."""

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
        # By GPU: time and values of the last sample.
        self._latest: dict[str, tuple[float, Look]] = {}
        self._sums: dict[int, dict[str, _Sum]] = {}

    def note(self, at: float, holders: Iterable[Holder], looks: Mapping[str, Look]) -> None:
        """Adds the samples taken at `at`. A GPU that did not answer counts as not measured."""
        self._latest |= {gpu: (at, look) for gpu, look in looks.items()}
        before, self._last = self._last, at
        if before is None or not at - before > 0:
            before = at - PERIOD if before is None else at
        for holder in holders:
            seen = [looks[gpu] for gpu in holder.gpus if gpu in looks]
            begin = max(before, at - PERIOD, holder.since)
            if not seen or begin >= at:
                continue
            # Counted entirely in the minute that has most of it.
            sums = self._sums.setdefault(int((begin + at) / 2) // MINUTE, {})
            total = sums.setdefault(holder.uid, _Sum(len(holder.gpus)))
            total.seconds += (at - begin) * len(seen)
            total.percent_seconds += (at - begin) * sum(look.percent for look in seen)
            total.memory_mb = max(total.memory_mb, sum(look.memory_mb for look in seen))
        self._close(int(at - PERIOD) // MINUTE)

    def busy(self, gpus: Sequence[str], simulated: bool, now: float) -> int | None:
        """Returns the recent utilization of the busiest of `gpus` (0 to 100); None if one has no recent sample. Simulated GPUs
        return 0, because their tasks compute on the CPU."""
        if simulated or not gpus:
            return 0
        recent = [look.percent for look in map(partial(self.look, now=now), gpus) if look is not None]
        return max(recent) if len(recent) == len(gpus) else None

    def look(self, gpu: str, now: float) -> Look | None:
        """Returns the last sample of a GPU; None if it is old or there is none."""
        at, look = self._latest.get(gpu, (0.0, None))
        return look if at > now - 2 * PERIOD else None

    def _close(self, current: int) -> None:
        """Closes the minutes before `current`: no later sample belongs to them."""
        for minute in sorted(each for each in self._sums if each < current):
            since = dt.datetime.fromtimestamp(minute * MINUTE, dt.UTC)
            for uid, total in sorted(self._sums.pop(minute).items()):
                busy = min(1.0, total.percent_seconds / total.seconds / 100)
                seconds = min(float(MINUTE), total.seconds / total.gpus)
                self.told += 1
                self.news.append(GpuUse(uid, since, round(seconds, 3), round(busy, 6), total.memory_mb))

    def since(self, position: str) -> Measurements:
        """Returns the news after `position`; all of them for another agent's position."""
        whose, _, number = position.partition("/")
        known = int(number) if whose == self.id and number.isdecimal() else 0
        first = self.told - len(self.news)
        start = max(known - first, 0)
        items = tuple(self.news)[start : start + AT_ONCE]
        return Measurements(f"{self.id}/{max(known, first) + len(items)}", items)


async def measure(meter: Meter, holding: Callable[[], Sequence[Holder]], names: Mapping[str, str]) -> None:
    """Samples held GPUs every 10 s, at whole sixths of a minute, as long as the agent lives. `names`: NVML's UUIDs. A hanging
    GPU blocks only a thread."""
    loop = asyncio.get_running_loop()
    nvml = Nvml()
    while True:
        await asyncio.sleep(PERIOD - time.time() % PERIOD)
        holders = holding()
        held = {gpu: names[gpu] for holder in holders for gpu in holder.gpus}
        looks = await loop.run_in_executor(None, nvml.look, held) if held else {}
        meter.note(time.time(), holders, looks)


class Nvml:
    """NVIDIA's library, opened on first use and again after an error."""

    def __init__(self) -> None:
        self._open = False
        self._said = ""

    def look(self, names: Mapping[str, str]) -> dict[str, Look]:
        """Samples the GPUs with these UUIDs; omits those that do not answer. One thread at a time."""
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
        """Logs a sentence once instead of every 10 s."""
        if sentence != self._said:
            self._said = sentence
            log.warning("%s", sentence)


def _look(pynvml: Any, uuid: str) -> Look:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Look(min(100, max(0, int(rates.gpu))), int(memory.used) >> 20)
