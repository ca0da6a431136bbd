"""What people ask for: when something is started, as one typed and validated value, and the times that follow from it. Pure.

Times are those of Debian's cron in the zone that was chosen, by cronsim: what is to come at an hour that a change of clocks
leaves out comes right behind the gap, and what is to come at an hour that comes twice comes the first time only. What comes every
hour or minute comes in each hour that there is.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from clusters.manifest import ClusterName
from portal.manifests import AppcodeName, DnsLabel, Manifest, Strict, field_error
from portal.zones import zones

# Later than this after its time, something has been missed; the portal looks every few seconds.
LATE = dt.timedelta(minutes=2)


def _cron(value: str) -> str:
    fields = value.split()
    if len(fields) != 5:
        raise ValueError(
            "Give five fields: minute, hour, day of month, month, day of week; for example 30 2 * * MON-FRI."
        )
    try:
        next(CronSim(" ".join(fields), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)))
    except CronSimError as error:
        raise ValueError(f"This is no cron expression: {error}.") from error
    except StopIteration as error:
        raise ValueError("There is no such time.") from error
    return " ".join(fields)


def _zone(value: str) -> str:
    if value not in zones():
        raise ValueError(f"“{value}” is no time zone; write it like Europe/Berlin, or UTC.")
    return value


class ScheduleSpec(Strict):
    """What is started when: a `cluster` is deployed once more, or a `pipeline` is run."""

    cron: Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_cron)] = Field(
        examples=["30 2 * * *"], description="Minute, hour, day of month, month, day of week."
    )
    time_zone: Annotated[str, StringConstraints(max_length=60), AfterValidator(_zone)] = Field(
        default="UTC", examples=["Europe/Berlin"]
    )
    cluster: ClusterName | None = None
    pipeline: DnsLabel | None = None
    missed: Literal["skip", "once"] = Field(
        default="skip",
        description="What becomes of times at which the portal did not run: nothing, or one start for all of them.",
    )
    overlapping: Literal["skip", "queue", "cancel"] = Field(
        default="skip",
        description="While the run before goes on: nothing, one start as soon as it is over, or it is ended for this.",
    )
    paused: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.cluster is None) == (self.pipeline is None):
            raise field_error("Name a cluster or a pipeline.", "cluster")
        return self

    def times(self, after: dt.datetime) -> Iterator[dt.datetime]:
        """All that come after that time, in UTC."""
        for each in CronSim(self.cron, after.astimezone(ZoneInfo(self.time_zone))):
            # In an hour that comes for the second time, the first one would be told again.
            if each > after:
                yield each.astimezone(dt.UTC)

    @property
    def words(self) -> str:
        """ "At 02:30 every day"."""
        return str(CronSim(self.cron, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)).explain())


class ScheduleMetadata(Strict):
    name: ClusterName
    appcode: AppcodeName


class ScheduleManifest(Manifest):
    """`{"kind":"schedule","metadata":{"name","appcode"},"spec":{…}}`; `status` is ours and is ignored when it comes back."""

    kind: Literal["schedule"] = "schedule"
    metadata: ScheduleMetadata
    spec: ScheduleSpec
