"""The facts of a run that its hooks get as environment variables.

PORTAL_APPCODE, PORTAL_CLUSTER and PORTAL_RUN are as in the run's tasks. PORTAL_FACTS is JSON of everything, to store or send on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusters.catalog.folders import output_folder
from clusters.manifest.hook_spec import SEEN_AT, HookSpec
from clusters.runs.models import Run
from clusters.scalars.events import Scalars
from clusters.scalars.reading import all_scalars
from datastores.actions import open_store
from datastores.drivers.patience import within
from datastores.models import Datastore
from portal.text.zones import utc_text

# Maximum seconds to read a run's metrics.
SECONDS = 30.0
# Environments are limited (MAX_ENV_BYTES of a manifest), and all of this is in it twice, besides the hook's own variables. In
# JSON, a byte of a message may take six.
MAX_METRICS_BYTES, MAX_MESSAGE_BYTES = 12 * 1024, 2000


@dataclass(frozen=True)
class Found:
    """Facts from outside the database: `metrics` as in `last_values`, and whether there is output. An empty folder of a bucket
    is no output, because it cannot be mounted."""

    metrics: Mapping[str, float | None]
    has_output: bool


def has_output(run: Run) -> bool:
    """Whether its output can be mounted. Raises DriverError."""
    if not run.spec["output"] or run.started_at is None:
        return False
    store = Datastore.objects.select_related("appcode")
    found = store.filter(appcode=run.cluster.appcode_id, name=run.spec["output"]).first()
    if found is None or found.kind != Datastore.Kind.S3:
        return True
    folder = output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number)
    with within(SECONDS):
        return next(iter(open_store(found).walk(folder)), None) is not None


def metrics_of(run: Run) -> dict[str, float | None]:
    """The last value of each metric, as in `last_values`: from its event files, or else from its printed output. Raises
    DriverError and CloudError; not inside a transaction."""
    with within(SECONDS):
        return last_values(all_scalars(run))


def last_values(scalars: Scalars) -> dict[str, float | None]:
    """Last values by tag, or folder/tag if in several folders; None if not finite. As many as fit, losses and accuracies
    first."""
    found: dict[str, float | None] = {}
    size = 0
    for tag in scalars.tags:
        curves = [each for each in scalars.curves if each.tag == tag and each.points]
        for curve in curves:
            name = f"{curve.folder}/{tag}" if len(curves) > 1 and curve.folder else tag
            # PostgreSQL rejects NUL, which a protocol buffer may contain.
            name = name.replace("\0", "\N{REPLACEMENT CHARACTER}")
            value = curve.points[-1].value
            size += len(json.dumps({name: value}))
            if size > MAX_METRICS_BYTES:
                return found
            found[name] = value if math.isfinite(value) else None
    return found


def environment(run: Run, hook: HookSpec, found: Found) -> dict[str, str]:
    """Environment variables for a hook of `run`, which has ended, or starts once a `before` hook has succeeded."""
    message = run.message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    facts: dict[str, Any] = {
        "appcode": run.cluster.appcode.code,
        "cluster": run.cluster.name,
        "run": run.number,
        "phase": run.phase,
        "reason": run.reason,
        "message": message,
        "image": run.spec["image"],
        "code": run.code,
        "input": {key: run.read[key] for key in ("digest", "files", "bytes") if key in run.read},
        "metrics": dict(found.metrics),
        "started": utc_text(run.started_at) if run.started_at else None,
        "finished": utc_text(run.finished_at) if run.finished_at else None,
        "gpuSeconds": run.gpu_seconds,
    }
    return {
        "PORTAL_APPCODE": run.cluster.appcode.code,
        "PORTAL_CLUSTER": run.cluster.name,
        "PORTAL_RUN": str(run.number),
        "PORTAL_HOOK": hook.name,
        "PORTAL_PHASE": run.phase,
        "PORTAL_REASON": run.reason,
        "PORTAL_MESSAGE": message,
        "PORTAL_METRICS": json.dumps(facts["metrics"]),
        "PORTAL_INPUT": SEEN_AT if hook.is_before and run.spec["input"] else "",
        "PORTAL_OUTPUT": SEEN_AT if found.has_output else "",
        "PORTAL_FACTS": json.dumps(facts),
    }
