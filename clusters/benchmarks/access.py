"""Reading benchmarks: the only way from a person to rows. What is not theirs raises the same Http404 as what does not exist."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import Http404

from clusters.models import Benchmark
from portal.access import VIEW, Capability, appcode_for, appcodes_for, require
from portal.models import User


def benchmarks_for(user: User) -> QuerySet[Benchmark]:
    """Of all their appcodes, with appcode and creator joined."""
    rows = Benchmark.objects.select_related("appcode", "created_by")
    return rows if user.is_administrator else rows.filter(appcode__in=appcodes_for(user).order_by().values("pk"))


def benchmarks_in(user: User, appcode: str) -> QuerySet[Benchmark]:
    """Those of one appcode. Raises Http404."""
    return benchmarks_for(user).filter(appcode=appcode_for(user, appcode))


def benchmark_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> Benchmark:
    """Raises Http404 (absent or not theirs) or PermissionDenied (visible, but they may not do that)."""
    found = benchmarks_for(user).filter(appcode__code=appcode, name=name).first()
    if found is None:
        raise Http404(f"There is no benchmark “{name}” in {appcode} that you can see.")
    require(user, found.appcode, capability)
    return found
