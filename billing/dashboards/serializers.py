"""Documents of dashboards. Money is decimal text, because JSON numbers are not exact. Days are UTC."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field

from billing.dashboards import reconciliation
from billing.efficiency import measured, waste
from billing.efficiency.capacity import Share
from billing.efficiency.measured import Busy, Idle, IdleTask, Measured
from billing.efficiency.models import Waste
from billing.ledger.models import Group, LedgerEntry
from billing.metering.models import Observation, Quarantined, UsageSegment
from billing.money import Used, display, money
from billing.periods import Range
from billing.sums.breakdown import Part
from billing.sums.over_time import Dashboard
from billing.sums.serializers import UsagePart, usage_parts
from portal.api.documents import Answer, page_of
from portal.api.money import Money
from portal.api.money import money as cost


class Days(Answer):
    """The requested range; `to` is the last day."""

    since: dt.date = Field(alias="from")
    to: dt.date
    columns: Literal["day", "month"]
    as_of: dt.datetime = Field(description="What still runs is counted until this time.")


class Spent(Answer):
    gpu_seconds: int
    cost: Money


class GroupTotal(Spent):
    value: str = Field(description='Of the group; "" where there is none, for GPU models CPU, memory and storage.')


class Cell(GroupTotal):
    since: dt.date = Field(alias="from", description="The first day of the column.")


class SpendingDocument(Answer):
    kind: Literal["spending"] = "spending"
    metadata: Days
    by: Literal["line", "appcode", "user", "model", "framework", "cluster"]
    total: Spent
    totals: list[GroupTotal] = Field(description="Over the whole range, the dearest first.")
    items: list[Cell]
    parts: list[UsagePart] | None = Field(
        description="What makes up the total of one business line; null for anything else."
    )


class HeldOf(Answer):
    """GPU-seconds held of those available. Before the first capacity record all fields but `held` are null."""

    held_gpu_seconds: int
    available_gpu_seconds: int | None
    utilisation: str | None = Field(description="From 0 to 1.", examples=["0.6250"])


class HeldCell(HeldOf):
    since: dt.date = Field(alias="from")
    gpu_model: str
    simulated_gpu_seconds: int = Field(description="Of simulated GPUs among those available.")
    measured_gpu_seconds: int = Field(
        description="Of those held, the ones of which it was measured how busy they were."
    )
    busy_gpu_seconds: int


class UtilisationDocument(Answer):
    kind: Literal["utilisation"] = "utilisation"
    metadata: Days
    total: HeldOf
    idle_while_held: str | None = Field(
        description="From 0 to 1, of the time that was measured; null where nothing was.", examples=["0.3120"]
    )
    measured_of_held: str = Field(
        description="How much of the held time was measured, from 0 to 1.", examples=["0.8700"]
    )
    items: list[HeldCell]


class Wasted(Spent):
    cases: int
    pod_seconds: int


class WasteKind(Wasted):
    kind: Literal["failed", "outlived", "reserved"]


class WasteCell(WasteKind):
    since: dt.date = Field(alias="from")


class WasteCase(Spent):
    kind: Literal["failed", "outlived", "reserved"]
    appcode: str
    cluster: str
    run: str
    began: dt.datetime
    ended: dt.datetime
    pod_seconds: int


class OutlivingServers(Answer):
    appcode: str
    cluster: str
    run: str
    pods: int
    gpus: int
    since: dt.datetime


class IdleTaskDocument(Spent):
    """Hours of one task in which its GPUs were less than 5 % busy."""

    appcode: str
    cluster: str
    run: str
    task: str
    pod: str
    segment: int
    gpu_model: str
    hours: int
    began: dt.datetime
    ended: dt.datetime
    busy: str = Field(description="From 0 to 1.", examples=["0.0123"])


class IdleCell(Spent):
    since: dt.date = Field(alias="from")
    hours: int


class IdleDocument(Spent):
    """GPUs held idle, by the time of idling, as far as it was measured."""

    known_since: dt.date | None = Field(
        description="Hours before this day (UTC) are not known any more and not in here; null where all are known."
    )
    hours: int = Field(description="Of tasks.")
    items: list[IdleCell]
    tasks: list[IdleTaskDocument] = Field(description="The 100 most expensive; all of them are a list of their own.")


class WasteDocument(Answer):
    """`reserved` is not billed; its cost is what the GPUs would have cost."""

    kind: Literal["waste"] = "waste"
    metadata: Days
    totals: list[WasteKind]
    items: list[WasteCell]
    dearest: list[WasteCase] = Field(description="The 100 dearest; all of them are a list of their own.")
    idle: IdleDocument
    outliving_now: list[OutlivingServers] = Field(description="At most 100, the longest first.")


class SegmentSummary(Answer):
    id: int
    pod: str
    appcode: str
    cluster: str
    run: str
    started: dt.datetime
    ended: dt.datetime | None
    flags: list[str]


class CorrectionDocument(Answer):
    segment: int
    pod: str
    appcode: str
    cluster: str
    run: str
    posted_at: dt.datetime
    used_since: dt.datetime
    taken_back: Money
    instead: Money


class QuarantinedDocument(Answer):
    seen_at: dt.datetime
    cloud: str
    reason: str
    raw: str


WasteCasePage = page_of("WasteCasePage", WasteCase)


IdleTaskPage = page_of("IdleTaskPage", IdleTaskDocument)


SegmentPage = page_of("SegmentPage", SegmentSummary)


CorrectionPage = page_of("CorrectionPage", CorrectionDocument)


QuarantinedPage = page_of("QuarantinedPage", QuarantinedDocument)


class ReconciliationDocument(Answer):
    """Lists hold the latest 100 (`withoutEnd` the oldest 100), and each has its own endpoint with all rows. Counts
    cover everything."""

    kind: Literal["reconciliation"] = "reconciliation"
    metadata: Days
    open_segments: int
    flags: dict[str, int]
    corrections: int
    taken_back: Money
    quarantined: int | None = Field(description="Null for those who are no administrators.")
    without_end: list[SegmentSummary] = Field(description="Open although their run is over.")
    flagged: list[SegmentSummary]
    corrected: list[CorrectionDocument]
    quarantine: list[QuarantinedDocument] | None


class ObservationDocument(Answer):
    seen_at: dt.datetime = Field(description="When it was first seen.")
    digest: str
    cloud: str
    phase: str
    scheduled_at: dt.datetime | None
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    estimated: bool
    gpus: int
    gpu_model: str
    cpu_milli: int
    memory_mb: int
    storage_mb: int
    labels: dict[str, str | int]


class LedgerEntryDocument(Answer):
    id: int
    kind: Literal["usage", "reversal", "credit"]
    sku: str
    since: dt.datetime
    until: dt.datetime
    quantity: int
    price: int | None
    per_hour: str
    discount_percent: str
    charge: str = Field(description="Exact: 1/460,800,000 of the currency.")
    amount: Money
    reverses: int | None
    posted_at: dt.datetime


class SegmentDocument(SegmentSummary):
    measured_gpu_seconds: int
    busy_gpu_seconds: int
    measured_known_since: dt.date | None = Field(
        description="What was measured before this day (UTC) is not known any more; null where all of it is, and without GPUs."
    )
    observations: list[ObservationDocument]
    entries: list[LedgerEntryDocument]


def days(range_: Range, now: dt.datetime) -> Days:
    return Days(since=range_.since, to=range_.last_day, columns=range_.step, as_of=now)


def spending_document(
    found: Dashboard, by: Group, names: dict[str, str], parts: Sequence[Part] | None
) -> dict[str, Any]:
    """`names` are appcode codes by id as text."""

    def named(value: str) -> str:
        return names.get(value, value) if by == "appcode" else value

    totals = sorted(found.by[by].items(), key=lambda pair: (-pair[1].charge, pair[0]))
    return SpendingDocument(
        metadata=days(found.range, found.now),
        by=by,
        total=Spent(**_spent(found.total)),
        totals=[GroupTotal(value=named(value), **_spent(used)) for value, used in totals],
        items=[
            Cell(since=since, value=named(value), **_spent(used))
            for since, column in found.by_group.items()
            for value, used in sorted(column.items(), key=lambda pair: (-pair[1].charge, pair[0]))
        ],
        parts=None if parts is None else usage_parts(parts),
    ).json_value()


def utilisation_document(
    range_: Range,
    now: dt.datetime,
    total: Share,
    shares: dict[dt.date, dict[str, Share]],
    there: dict[dt.date, dict[str, tuple[int, int]]],
    looked: dict[dt.date, dict[str, Measured]],
    busy: Busy,
) -> dict[str, Any]:
    return UtilisationDocument(
        metadata=days(range_, now),
        total=HeldOf(**_held(total)),
        idle_while_held=None if busy.idle is None else str(display(busy.idle / 100, 4)),
        measured_of_held=str(display(busy.covered / 100, 4)),
        items=[
            HeldCell(
                since=since, gpu_model=model, simulated_gpu_seconds=there[since].get(model, (0, 0))[1], **_held(share),
                **_looked(looked[since].get(model, Measured())),
            )
            for since, column in shares.items()
            for model, share in column.items()
        ],
    ).json_value()  # fmt: skip


def waste_document(
    range_: Range, now: dt.datetime, found: waste.Report, idle: Idle, names: dict[str, str]
) -> dict[str, Any]:
    def summed(each: waste.Wasted) -> dict[str, Any]:
        return {"cases": each.count, "pod_seconds": each.seconds, **_spent(each.used)}

    return WasteDocument(
        metadata=days(range_, now),
        totals=[WasteKind(kind=kind, **summed(each)) for kind, each in found.kinds.items()],
        items=[
            WasteCell(since=since, kind=kind, **summed(each))
            for since, column in found.columns.items()
            for kind, each in column.items()
            if each.count
        ],
        dearest=[waste_case(row) for row in found.dearest],
        idle=IdleDocument(
            known_since=measured.forgotten_before(range_.since, now), hours=idle.hours, **_spent(idle.used),
            items=[IdleCell(since=since, hours=hours, **_spent(used)) for since, (hours, used) in idle.columns.items() if hours],
            tasks=[idle_task(each, names) for each in idle.tasks],
        ),
        outliving_now=[
            OutlivingServers.of(each, appcode=names.get(str(each.appcode_id), ""), since=each.over)
            for each in found.outliving
        ],
    ).json_value()  # fmt: skip


def waste_case(row: Waste) -> WasteCase:
    return WasteCase(
        kind=row.kind, appcode=row.appcode.code, cluster=_label(row.labels, "cluster"), run=_label(row.labels, "run"),
        began=row.since, ended=row.until, pod_seconds=row.seconds, **_spent(Used(row.gpu_seconds, row.charge)),
    )  # fmt: skip


def idle_task(each: IdleTask, names: dict[str, str]) -> IdleTaskDocument:
    return IdleTaskDocument.of(
        each, appcode=names.get(str(each.appcode_id), ""), pod=each.uid, segment=each.segment_id, began=each.since,
        ended=each.until, busy=str(display(each.busy_percent / 100, 4)), **_spent(each.used),
    )  # fmt: skip


def segment_summary(row: UsageSegment) -> SegmentSummary:
    return SegmentSummary.of(row, **_summary(row))


def correction(each: reconciliation.Correction, names: dict[str, str]) -> CorrectionDocument:
    return CorrectionDocument.of(
        each, segment=each.segment_id, pod=each.uid, appcode=names.get(str(each.appcode_id), ""), used_since=each.since,
        taken_back=cost(each.taken), instead=cost(each.instead),
    )  # fmt: skip


def quarantined(row: Quarantined) -> QuarantinedDocument:
    return QuarantinedDocument.of(row)


def reconciliation_document(
    range_: Range, now: dt.datetime, found: reconciliation.Report, names: dict[str, str]
) -> dict[str, Any]:
    told = found.quarantine
    return ReconciliationDocument(
        metadata=days(range_, now),
        open_segments=found.open,
        flags=found.flags,
        corrections=found.corrected,
        taken_back=cost(found.taken),
        quarantined=None if told is None else found.quarantined,
        without_end=[segment_summary(each.segment) for each in found.endless],
        flagged=[segment_summary(row) for row in found.flagged],
        corrected=[correction(each, names) for each in found.corrections],
        quarantine=None if told is None else [quarantined(each) for each in told],
    ).json_value()  # fmt: skip


def segment_document(
    row: UsageSegment, seen: list[Observation], lines: list[LedgerEntry], looked: Measured, now: dt.datetime
) -> dict[str, Any]:
    return SegmentDocument.of(
        row,
        **_summary(row),
        **_looked(looked),
        measured_known_since=measured.forgotten_of(row.segment, now),
        observations=[ObservationDocument.of(each) for each in seen],
        entries=[
            LedgerEntryDocument.of(
                line, price=line.price_id, per_hour=f"{line.per_hour.normalize():f}",
                discount_percent=f"{line.discount.normalize():f}", charge=f"{line.charge:f}", amount=cost(line.amount),
                reverses=line.reverses_id,
            )
            for line in lines
        ],
    ).json_value()  # fmt: skip


def _spent(used: Used) -> dict[str, Any]:
    return {"gpu_seconds": used.gpu_seconds, "cost": cost(money(used.charge))}


def _looked(each: Measured) -> dict[str, int]:
    return {"measured_gpu_seconds": each.measured_ms // 1000, "busy_gpu_seconds": each.busy_ms // 1000}


def _held(share: Share) -> dict[str, Any]:
    part: Decimal | None = share.part
    return {
        "held_gpu_seconds": share.held,
        "available_gpu_seconds": None if part is None else share.available,
        "utilisation": None if part is None else str(display(part, 4)),
    }


def _summary(row: UsageSegment) -> dict[str, Any]:
    return {
        "pod": row.uid, "appcode": row.appcode.code, "cluster": _label(row.labels, "cluster"),
        "run": _label(row.labels, "run"),
    }  # fmt: skip


def _label(labels: Any, name: str) -> str:
    return str(labels.get(name, "")) if isinstance(labels, dict) else ""
