"""The manifest of a schedule as one typed and validated value, and its times. Pure.

Times follow Debian's cron in the chosen zone, by cronsim: a time in an hour that a clock change skips comes right after the
gap, and a time in a repeated hour comes only the first time. Hourly and minutely times come in every hour that exists.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from clusters.manifest.cluster import ClusterName
from portal.manifests import AppcodeName, DnsLabel, Manifest, Strict, field_error
from portal.manifests.kept import Kept
from portal.text.zones import zones

# A start later than this after its time counts as missed. The portal checks every few seconds.
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
    """When a `cluster` is deployed again, or a `pipeline` is run."""

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
        """All times after `after`, in UTC."""
        for each in CronSim(self.cron, after.astimezone(ZoneInfo(self.time_zone))):
            # Within a repeated hour, cronsim returns the earlier time again.
            if each > after:
                yield each.astimezone(dt.UTC)

    @property
    def words(self) -> str:
        """ "At 02:30 every day"."""
        return str(CronSim(self.cron, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)).explain())


class ScheduleMetadata(Strict):
    name: Annotated[ClusterName, Kept("A schedule keeps its name; create another one.")]
    appcode: AppcodeName


class ScheduleManifest(Manifest):
    """`{"kind":"schedule","metadata":{"name","appcode"},"spec":{…}}`. The portal writes `status` and ignores it in requests."""

    kind: Literal["schedule"] = "schedule"
    metadata: ScheduleMetadata
    spec: ScheduleSpec
