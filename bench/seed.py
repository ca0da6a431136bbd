"""The benchmark's tenants: 500 appcodes with 10,000 clusters that have run, and a month of usage.

Rows are inserted directly and in bulk, because only reading them is measured. Needs a Django that is set up for the
portal under test.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
from dataclasses import dataclass
from decimal import Decimal

from django.db import connection, transaction
from django.utils import timezone

from bench.sizes import size
from billing.efficiency import waste
from billing.invoices import closing
from billing.ledger import posting
from billing.models import Price, UsageSegment
from clusters.catalog.models import Flavor, Image
from clusters.manifest.cluster import ClusterSpec
from clusters.runs.models import Cluster, Run
from clusters.runs.status.phase_update import consumer
from portal.actions.tokens import make_token
from portal.models import Appcode, Membership, OrgNode, User

APPCODES, CLUSTERS, LINES = size(500, 4), size(10_000, 20), size(10, 2)
MEMBER_OF = size(25, 2)
ROLES = {"master": 1, "ps": 1, "worker": 4}
SPEC = ClusterSpec.model_validate({
    "framework": "tensorflow", "image": "bench", "command": "python train.py --epochs 20", "env": {"DATA_DIR": "/elearn/input"},
    "roles": {role: {"flavor": "cpu" if role == "ps" else "gpu", "count": count} for role, count in ROLES.items()},
}).model_dump(mode="json", by_alias=True)  # fmt: skip


@dataclass(frozen=True)
class Seeded:
    """The administrator, who sees everything, a user who is a member of MEMBER_OF appcodes, and the administrator's token."""

    root: User
    member: User
    token: str
    codes: list[str]


@transaction.atomic
def seed() -> Seeded:
    root = User.objects.create_superuser("bench-root", "bench-root@example.com")
    member = User.objects.create_user("bench-member", "bench-member@example.com")
    start = timezone.now().replace(microsecond=0)
    for sku, per_hour in (("gpu", "1.2"), ("cpu", "0.03"), ("memory", "0.004")):
        Price.objects.create(sku=sku, per_hour=Decimal(per_hour), valid_from=start - dt.timedelta(days=365))
    Flavor.objects.create(name="gpu", title="Small + 1 GPU", cpu_milli=200, memory_mb=128, gpus=1)
    Flavor.objects.create(name="cpu", title="Small", cpu_milli=200, memory_mb=128, gpus=0)
    Flavor.objects.create(
        name="serving", title="Small, with memory for TensorFlow", cpu_milli=200, memory_mb=1024, gpus=0
    )
    Image.objects.create(name="bench", title="Benchmark", environment=sys.prefix, container="example/bench:1")
    appcodes = _appcodes(root, member)
    _clusters(appcodes, root, start)
    _, token = make_token("bench", 1, acting_user=root)
    return Seeded(root, member, token, [appcode.code for appcode in appcodes])


def settle() -> None:
    """Does what the portal's clock and autovacuum would do within minutes, so that they do not run during a measurement."""
    posting.post()
    closing.close_due()
    waste.look()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    # Otherwise the memory of this connection's server process would count as the portal's.
    connection.close()


def _appcodes(root: User, member: User) -> list[Appcode]:
    lines = OrgNode.objects.bulk_create(
        OrgNode(path=f"bench.line-{n}", title=f"Line {n}", namespace=f"line-{n}") for n in range(LINES)
    )
    appcodes = Appcode.objects.bulk_create(
        Appcode(code=f"bench-{n:03}", name=f"Benchmark {n}", org_node=lines[n % LINES], emails=["b@example.com"],
                state=Appcode.State.ACTIVE, gpu_quota=100)
        for n in range(APPCODES)
    )  # fmt: skip
    owners = [Membership(user=root, appcode=each, role="owner") for each in appcodes]
    members = [Membership(user=member, appcode=each, role="developer") for each in appcodes[:: APPCODES // MEMBER_OF]]
    Membership.objects.bulk_create(owners + members)
    return appcodes


def _clusters(appcodes: list[Appcode], owner: User, now: dt.datetime) -> None:
    chance = random.Random(20)  # noqa: S311  the same tenants every time
    clusters = Cluster.objects.bulk_create(
        (
            Cluster(appcode=chance.choice(appcodes), name=f"train-{n:05}", spec=SPEC, created_by=owner, run_count=1)
            for n in range(CLUSTERS)
        ),
        batch_size=2000,
    )
    runs, segments, times = [], [], []
    for cluster in clusters:
        begin = now - dt.timedelta(seconds=chance.randrange(600, 30 * 86400))
        end = min(now, begin + dt.timedelta(seconds=chance.randrange(60, 6 * 3600)))
        phase = chance.choice([Run.Phase.SUCCEEDED, Run.Phase.SUCCEEDED, Run.Phase.FAILED, Run.Phase.STOPPED])
        seconds = int((end - begin).total_seconds()) * 5
        times.append((begin, end))
        runs.append(
            Run(
                cluster=cluster, number=1, spec=SPEC, resources={role: {"gpus": role != "ps"} for role in ROLES}, gpus=5,
                created_by=owner, desired=Run.Desired.ENDED, phase=phase, verdict=phase, gone=True, admitted_at=begin,
                numbers_due=False, applied_at=begin, release_asked_at=end, started_at=begin, finished_at=end, phase_since=end,
                gpu_seconds=seconds, usage_as_of=end, cost=Decimal(seconds) / 3000,
                roles={role: {"ready": 0, "count": n} for role, n in ROLES.items()},
            )
        )  # fmt: skip
    Run.objects.bulk_create(runs, batch_size=2000)
    for cluster, run, (begin, end) in zip(clusters, runs, times, strict=True):
        cluster.current_run = run
        segments += [
            UsageSegment(
                uid=f"bench-{run.pk}-{role}-{index}", appcode_id=cluster.appcode_id, consumer=consumer(run),
                labels={"cluster": cluster.name, "run": 1, "role": role, "index": index}, gpus=role != "ps", cpu_milli=200,
                memory_mb=128, started=begin, ended=end,
            )
            for role, count in ROLES.items() for index in range(count)
        ]  # fmt: skip
    Cluster.objects.bulk_update(clusters, ["current_run"], batch_size=2000)
    UsageSegment.objects.bulk_create(segments, batch_size=5000)
