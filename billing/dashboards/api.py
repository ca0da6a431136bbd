"""REST of dashboards: sums over time, utilisation, waste, reconciliation, and one segment with its sources."""

from __future__ import annotations

import datetime as dt

from django.http import Http404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing import periods
from billing.dashboards import reconciliation
from billing.dashboards.serializers import (
    CorrectionPage,
    IdleTaskPage,
    QuarantinedPage,
    ReconciliationDocument,
    SegmentDocument,
    SegmentPage,
    SpendingDocument,
    UtilisationDocument,
    WasteCasePage,
    WasteDocument,
    correction,
    idle_task,
    quarantined,
    reconciliation_document,
    segment_document,
    segment_summary,
    spending_document,
    utilisation_document,
    waste_case,
    waste_document,
)
from billing.efficiency import capacity, measured, waste
from billing.ledger.models import GROUPS, Group, LedgerEntry
from billing.metering.models import Observation, UsageSegment
from billing.metering.segments import floor
from billing.periods import STEPS, Range
from billing.sums import breakdown, over_time
from billing.sums.over_time import Dashboard
from portal.access import appcodes_for
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, page, page_of_sums, text
from portal.api.views import administrator, person
from portal.errors import Invalid

DAYS = [
    OpenApiParameter("from", OpenApiTypes.DATE, description="The first day (UTC). Default: 30 days ago."),
    OpenApiParameter("to", OpenApiTypes.DATE, description="The last day, which counts as a whole. Default: today."),
    OpenApiParameter("columns", str, enum=STEPS, description="Default: days, or months when there are many."),
    OpenApiParameter("appcode", str, description="Only of this appcode."),
]
NARROW: tuple[Group, ...] = ("line", "user", "model", "framework", "cluster")


class Scope:
    """The days and appcodes that a request selects. Raises Invalid, and Http404 for an appcode that the user may not see."""

    def __init__(self, request: Request) -> None:
        self.now: dt.datetime = floor(timezone.now())
        self.user = person(request)
        since, until, step = (text(request, name, longest=20) for name in ("from", "to", "columns"))
        self.range: Range = periods.parse_days(since, until, step, self.now.date())
        self.names = {str(pk): code for pk, code in appcodes_for(self.user).order_by().values_list("pk", "code")}
        code = text(request, "appcode", longest=63)
        chosen = [int(pk) for pk, name in self.names.items() if code in ("", name)]
        if code and code not in self.names.values():
            raise Http404(f"There is no appcode “{code}” that you can see.")
        everything = self.user.is_administrator and not code
        self.appcodes = None if everything else sorted(chosen)

    def read(self, by: Group, where: dict[Group, str]) -> Dashboard:
        return over_time.read(self.range, by, self.now, appcodes=self.appcodes, where=where)


def _narrowed(request: Request) -> dict[Group, str]:
    return {group: text(request, group, longest=200) for group in NARROW if group in request.query_params}


class Spending(APIView):
    @operation(
        "dashboard_spending",
        SpendingDocument,
        parameters=[
            *DAYS,
            OpenApiParameter("by", str, enum=GROUPS, description="Default: appcode."),
            *(OpenApiParameter(group, str, description="Only of this value.") for group in NARROW),
        ],
    )
    def get(self, request: Request) -> Document:
        """GPU-seconds and cost over time by business line, appcode, person, GPU model, framework or cluster

        Of all appcodes that I may see, exact to the second, what still runs included."""
        scope = Scope(request)
        by = text(request, "by", longest=20) or "appcode"
        if by not in GROUPS:
            raise Invalid.at("by", message=f"Choose one of {', '.join(GROUPS)}.")
        where = _narrowed(request)
        found, parts = scope.read(by, where), None
        if where.keys() == {"line"}:
            parts = breakdown.parts(scope.now, window=scope.range.window, appcodes=scope.appcodes, line=where["line"])
        return spending_document(found, by, scope.names, parts)


class Utilisation(APIView):
    @operation("dashboard_utilisation", UtilisationDocument, parameters=DAYS)
    def get(self, request: Request) -> Document:
        """GPU-seconds held of those that were there, by GPU model, and how idle they were while held

        What was there is known from the moment on in which the portal followed a cloud."""
        scope = Scope(request)
        there = capacity.available(scope.range, scope.now)
        found = scope.read("model", {})
        shares = capacity.shares(found.by_group, there)
        looked = measured.by_model(scope.range, appcodes=scope.appcodes)
        busy = measured.busy(found.by_group, looked, looked, None)
        total = capacity.total(share for column in shares.values() for share in column.values())
        return utilisation_document(scope.range, scope.now, total, shares, there, looked, busy)


class WasteOverTime(APIView):
    @operation("dashboard_waste", WasteDocument, parameters=DAYS)
    def get(self, request: Request) -> Document:
        """What was held for nothing: failed runs, parameter servers that outlived their workers, GPUs that waited

        By the time at which a run ended; reckoned within a minute or two after that. GPUs that were held idle stand
        apart, as far as it was measured how busy they were; hours older than PORTAL_MEASURED_DAYS (396) are not known
        any more and missing, which `idle.knownSince` says."""
        scope = Scope(request)
        found = waste.report(scope.range, scope.now, appcodes=scope.appcodes)
        idle = measured.idle(scope.range, appcodes=scope.appcodes)
        return waste_document(scope.range, scope.now, found, idle, scope.names)


class Reconciliation(APIView):
    @operation("dashboard_reconciliation", ReconciliationDocument, parameters=DAYS)
    def get(self, request: Request) -> Document:
        """Pods without an end, mended times, corrections of the ledger, and sightings that nobody understood"""
        scope = Scope(request)
        administrator = scope.user.is_administrator
        found = reconciliation.report(scope.range, scope.now, appcodes=scope.appcodes, quarantine=administrator)
        return reconciliation_document(scope.range, scope.now, found, scope.names)


class WasteCases(APIView):
    @operation("dashboard_waste_cases", WasteCasePage, parameters=[*DAYS, *PAGE_PARAMETERS])
    def get(self, request: Request) -> Response:
        """Every case of waste: failed runs, parameter servers that outlived their workers, GPUs that waited"""
        scope = Scope(request)
        rows = waste.cases(scope.range, appcodes=scope.appcodes)
        return page(request, rows, order="-id", render=lambda row: waste_case(row).json_value())


class IdleTasks(APIView):
    @operation("dashboard_waste_idle", IdleTaskPage, parameters=[*DAYS, *PAGE_PARAMETERS])
    def get(self, request: Request) -> Response:
        """Every task whose GPUs were held idle, as far as that was measured"""
        scope = Scope(request)
        return page_of_sums(
            request,
            lambda before, most: measured.idle_tasks_before(scope.range, before, most, appcodes=scope.appcodes),
            number_of=lambda each: each.segment_id,
            render=lambda each: idle_task(each, scope.names).json_value(),
        )


class WithoutEnd(APIView):
    @operation("reconciliation_without_end", SegmentPage, parameters=[DAYS[3], *PAGE_PARAMETERS])
    def get(self, request: Request) -> Response:
        """Every pod that still holds its resources although its run is over"""
        scope = Scope(request)
        rows = reconciliation.endless(scope.now, scope.appcodes)
        return page(request, rows, order="id", render=lambda row: segment_summary(row).json_value())


class Flagged(APIView):
    @operation("reconciliation_flagged", SegmentPage, parameters=[*DAYS, *PAGE_PARAMETERS])
    def get(self, request: Request) -> Response:
        """Every segment with a time that had to be mended"""
        scope = Scope(request)
        rows = reconciliation.flagged(scope.range, scope.appcodes)
        return page(request, rows, order="-id", render=lambda row: segment_summary(row).json_value())


class Corrections(APIView):
    @operation("reconciliation_corrections", CorrectionPage, parameters=[*DAYS, *PAGE_PARAMETERS])
    def get(self, request: Request) -> Response:
        """Everything that the ledger took back, and what it charged instead"""
        scope = Scope(request)
        return page_of_sums(
            request,
            lambda before, most: list(
                reconciliation.corrections(scope.range, scope.appcodes, before=before, most=most)
            ),
            number_of=lambda each: each.number,
            render=lambda each: correction(each, scope.names).json_value(),
        )


class Quarantine(APIView):
    @operation("reconciliation_quarantine", QuarantinedPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request) -> Response:
        """Every sighting that nobody has understood yet; administrators only"""
        administrator(request)
        rows = reconciliation.quarantined()
        return page(request, rows, order="-id", render=lambda row: quarantined(row).json_value())


class OneSegment(APIView):
    @operation("segments_read", SegmentDocument)
    def get(self, request: Request, pk: int) -> Document:
        """One segment with every sighting behind it and every line of the ledger that follows from it"""
        row = (
            UsageSegment.objects.select_related("appcode")
            .filter(pk=pk, appcode__in=appcodes_for(person(request)))
            .first()
        )
        if row is None:
            raise Http404("There is no such segment.")
        seen = list(Observation.objects.filter(uid=row.uid).order_by("seen_at", "pk"))
        lines = list(LedgerEntry.objects.filter(segment=row).order_by("pk"))
        looked = measured.of_pods([row.uid]).get(row.uid, measured.Measured())
        return segment_document(row, seen, lines, looked, timezone.now())
