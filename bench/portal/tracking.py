"""The table of results of an appcode with 10,000 runs of 50 metrics: its page sorted, filtered and grouped, and by REST."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from bench.portal.measures import api_of, pages, signed_in
from bench.results import Result, quantile
from bench.seed import SPEC
from bench.sizes import size
from bench.web import one_by_one
from clusters.results import query
from clusters.results.numbers import metric_ids
from clusters.results.view import View
from clusters.runs.models import Cluster, Run
from portal.models import Appcode

if TYPE_CHECKING:
    from bench.seed import Seeded
    from tests.running import Portal

RUNS, METRICS = size(10_000, 10), size(50, 3)
ASKED, WARM_UP, PAGE_MS, QUERIES = size(100, 1), size(5, 0), 300, 3
# Runs of a cluster, as people re-deploy one.
EACH = size(100, 5)


def tracking(portal: Portal, tenants: Seeded) -> list[Result]:
    """the table of results of 10,000 runs with 50 metrics, sorted, filtered and grouped"""
    code = tenants.codes[1]
    _fill(code, tenants)
    browser, api = signed_in(tenants.root), api_of(portal, tenants)
    page = pages(portal, browser)
    path, rest = f"/results/{code}", f"/appcodes/{code}/results"
    asked = (
        ("the newest", page, path + "?sort=-started"),
        ("sorted by a metric's best value", page, path + "?sort=best:loss"),
        ("three conditions, sorted by a metric", page, path + "?sort=-last:m7&where=loss%3C0.5,m1%3E0.2,LR%3C0.5"),
        ("sorted by a parameter, the last page", page, path + "?sort=param:LR&page=200"),
        ("grouped by a parameter", page, path + "?group=param:LR"),
        ("its rows, as an open page asks for them", page, path + "/table?sort=-cost"),
        ("REST, the best 50", api, rest + "?sort=best:loss"),
    )
    found = []
    for name, client, address in asked:
        one_by_one(WARM_UP, lambda client=client, address=address: client.send("GET", address))  # type: ignore[misc]
        took = one_by_one(ASKED, lambda client=client, address=address: client.send("GET", address))  # type: ignore[misc]
        found.append(
            Result(f"Results of {RUNS:,} runs × {METRICS}, {name}: p99", quantile(took, 0.99) * 1000, "ms", PAGE_MS)
        )
    appcode = Appcode.objects.get(code=code)
    with CaptureQueriesContext(connection) as statements:
        query.find(appcode, View(sort="best:loss", where="loss < 0.5, LR < 0.5"), timezone.now())
    return [*found, Result("Results: statements for a page of rows", len(statements), "", QUERIES)]


@transaction.atomic
def _fill(code: str, tenants: Seeded) -> None:
    """Writes RUNS runs of several clusters, each with METRICS metrics and two parameters."""
    now, appcode = timezone.now(), Appcode.objects.get(code=code)
    clusters = Cluster.objects.bulk_create(
        Cluster(appcode=appcode, name=f"tracked-{n}", spec=SPEC, created_by=tenants.root, run_count=EACH)
        for n in range(RUNS // EACH)
    )
    ended = {
        "spec": SPEC, "resources": {}, "gpus": 1, "created_by": tenants.root, "desired": Run.Desired.ENDED,
        "phase": Run.Phase.SUCCEEDED, "verdict": Run.Phase.SUCCEEDED, "gone": True, "started_at": now, "finished_at": now,
        "usage_as_of": now, "numbers_due": False, "numbers_at": now, "roles": {"master": {"ready": 0, "count": 1}},
    }  # fmt: skip
    runs = Run.objects.bulk_create(
        (
            Run(cluster=clusters[n // EACH], number=n % EACH + 1, cost=Decimal(n % 977) / 100,
                parameters={"LR": str(n % 20 / 20), "SEED": str(n), "DATA_DIR": "/elearn/input"}, **ended)
            for n in range(RUNS)
        ),
        batch_size=2000,
    )  # fmt: skip
    ids = metric_ids(appcode.pk, ["loss", *(f"m{n}" for n in range(1, METRICS))])
    with connection.cursor() as cursor:
        # Values of a fixed random sequence, in one statement: half a million rows by way of objects would take minutes.
        cursor.execute("SELECT setseed(0.5)")
        cursor.execute(
            "INSERT INTO clusters_runmetric (run_id, metric_id, last, step, low, low_step, high, high_step) "
            "SELECT run, metric, random(), 1000, random() / 2, 700, 1 + random(), 3 FROM unnest(%s) run, unnest(%s) metric",
            [[run.pk for run in runs], list(ids.values())],
        )
    transaction.on_commit(_analyze)


def _analyze() -> None:
    """What autovacuum does within a minute."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE clusters_runmetric, clusters_metric, clusters_run, clusters_cluster")
