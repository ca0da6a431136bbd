"""Which inputs a Kubernetes cluster caches, and which runs share a copy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusters.clouds.drivers.base import CloudRefused, Mount, Plan
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import cache, manifests
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.plans import bucket, plan, role, run_ref

OFFERED = Settings(cache_class="cephfs")


def reading(appcode: str = "demo", secret: str = "very-secret", **changes: Any) -> Plan:
    source = replace(bucket("digits"), secret_key=secret)
    facts: dict[str, Any] = {
        "cached": True,
        "version": "digits@1",
        "digest": "a",
        "disk_bytes": 10**9,
        "source": source,
    }
    mount = Mount(**{"mount_path": "/elearn/input", "read_only": True, **facts, **changes})
    return plan(role("master"), run=run_ref(appcode=appcode), mounts=(mount,))


@pytest.mark.parametrize(
    ("settings", "disk_bytes", "why"),
    [
        (Settings(), 10**9, "name a storage class"),
        (OFFERED, None, "Make a version"),
        (replace(OFFERED, largest_volume="5Gi"), 4 * 2**30, "a volume of 6Gi, and a volume may have at most 5Gi"),
        (replace(OFFERED, largest_volume="6Gi"), 4 * 2**30, ""),
    ],
)
def test_an_input_is_cached_where_there_is_a_class_for_a_version_that_fits(
    settings: Settings, disk_bytes: int | None, why: str
) -> None:
    said = KubernetesCloud.why_not_cached(settings.json_value(), disk_bytes)
    assert why in said
    assert bool(said) == bool(why)
    asked = reading(disk_bytes=disk_bytes or 0, digest="" if disk_bytes is None else "a")
    if not why:
        manifests.check(asked, settings)
        return
    with pytest.raises(CloudRefused, match=why):
        manifests.check(asked, settings)


def test_runs_of_one_appcode_that_list_the_same_with_the_same_keys_share_a_copy() -> None:
    one = cache.claim_name(reading(), OFFERED)
    assert cache.claim_name(reading(secret="another"), OFFERED) == one
    assert cache.claim_name(reading(fold=1, folds=5), OFFERED) == one
    others = [
        reading("demo2"),
        reading(digest="b"),
        reading(source=replace(bucket("digits"), prefix="train")),
        reading(source=replace(bucket("digits"), access_key="ANOTHER")),
    ]
    named = {cache.claim_name(each, OFFERED) for each in others}
    assert len(named) == len(others)
    assert one not in named
    assert cache.claim_manifest(reading(cached=False), OFFERED, "2026-07-01") is None
