"""REST: what an appcode has used."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing import periods
from billing.metering.segments import floor
from billing.sums import access, makeup
from billing.sums.serializers import UsageDocument, usage_document
from portal.access import appcode_for
from portal.api.pagination import text
from portal.api.views import person

# Not empty: what is not said is left out.
MOMENT = {"type": "string", "minLength": 1}
WHEN = "A day like 2026-01-31 (UTC) or a time like 2026-01-31T18:00:00Z."


class AppcodeUsage(APIView):
    @extend_schema(
        operation_id="appcode_usage",
        summary="GPU-seconds and cost of an appcode in a period, and which run and role used how much",
        description="Exact to the second, including what is still running.",
        parameters=[
            OpenApiParameter("from", MOMENT, description=f"{WHEN} Default: the beginning of this month."),
            OpenApiParameter(
                "to", MOMENT, description=f"{WHEN} A day counts as a whole. Default: the end of the month."
            ),
        ],
        responses=UsageDocument,
    )
    def get(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code)
        now = floor(timezone.now())
        period = periods.parse(text(request, "from", longest=40), text(request, "to", longest=40), now)
        parts = makeup.parts(now, window=period.window, appcodes=[appcode.pk])
        return Response(usage_document(appcode, period, now, access.usage_by_role(appcode, period, now), parts))
