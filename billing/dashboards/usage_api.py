"""REST: an appcode's usage."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.views import APIView

from billing import periods
from billing.metering.segments import floor
from billing.sums import access, breakdown
from billing.sums.serializers import UsageDocument, usage_document
from portal.access import appcode_for
from portal.api.operations import Document, operation
from portal.api.pagination import text
from portal.api.views import person

# An empty value is not valid; leave the parameter out instead.
MOMENT = {"type": "string", "minLength": 1}
WHEN = "A day like 2026-01-31 (UTC) or a time like 2026-01-31T18:00:00Z."


class AppcodeUsage(APIView):
    @operation(
        "appcode_usage",
        UsageDocument,
        parameters=[
            OpenApiParameter("from", MOMENT, description=f"{WHEN} Default: the beginning of this month."),
            OpenApiParameter(
                "to", MOMENT, description=f"{WHEN} A day counts as a whole. Default: the end of the month."
            ),
        ],
    )
    def get(self, request: Request, code: str) -> Document:
        """GPU-seconds and cost of an appcode in a period, and which run and role used how much

        Exact to the second, including what is still running."""
        appcode = appcode_for(person(request), code)
        now = floor(timezone.now())
        period = periods.parse(text(request, "from", longest=40), text(request, "to", longest=40), now)
        parts = breakdown.parts(now, window=period.window, appcodes=[appcode.pk])
        return usage_document(appcode, period, now, access.usage_by_role(appcode, period, now), parts)
