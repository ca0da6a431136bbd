"""Names and quantities that Kubernetes would refuse are refused when a flavor is saved, and all others are not."""

from __future__ import annotations

from typing import Any

import pytest

from clusters.catalog.demands import check_extra, check_labels, check_resource, check_tolerations, taint_lines, taints

TOLERATION = {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("check", "value"),
    [
        *((check_resource, name) for name in (
            "nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me", "nvidia.com/gpu.shared",
            "gpu.intel.com/i915",
        )),
        (check_labels, {"pool": "", "topology.kubernetes.io/zone": "eu-1", "cloud.google.com/gke-nodepool": "A_1.b"}),
        (check_tolerations, [TOLERATION, {"key": "spot", "operator": "Exists"}, {"key": "a.b/c", "value": ""}]),
        (check_extra, {"rdma/hca": 1, "vendor.io/fpga": "2", "hugepages-2Mi": "1Gi", "hugepages-1Gi": "2Gi"}),
    ],
)  # fmt: skip
def test_what_kubernetes_takes_is_taken(check: Any, value: Any) -> None:
    check(value)


@pytest.mark.parametrize(
    ("check", "value", "sentence"),
    [
        *((check_resource, name, "extended resource") for name in (
            "", "gpu", "nvidia.com/", "/gpu", "Nvidia.com/gpu", "nvidia.com/mig 1g", "nvidia.com/migé", "cpu", "a/b/c",
            "kubernetes.io/gpu", "x.kubernetes.io/gpu", "requests.nvidia.com/gpu", "nvidia.com/gpu\n", f"{'a' * 64}.com/gpu",
            f"nvidia.com/{'g' * 64}", 7, None,
        )),
        *((check_labels, {key: "a"}, "cannot be a key") for key in ("", "-pool", "a b", "a/b/c", "/zone", "p" * 64, "zone\n")),
        *((check_labels, {"pool": value}, "at most 63") for value in ("a b", "-a", "a" * 64, "é", 1, True, None)),
        (check_labels, ["pool"], "by name"),
        (check_labels, {f"pool-{n}": "a" for n in range(17)}, "at most 16"),
        (check_tolerations, {"key": "team"}, "list"),
        (check_tolerations, ["team"], "has the texts"),
        (check_tolerations, [{"key": "team", "value": 1}], "has the texts"),
        (check_tolerations, [{"operator": "Exists"}], "Name the key"),
        (check_tolerations, [TOLERATION | {"seconds": "3"}], "no “seconds”"),
        (check_tolerations, [TOLERATION | {"operator": "In"}], "Equal or Exists"),
        (check_tolerations, [TOLERATION | {"operator": "Exists"}], "no value"),
        (check_tolerations, [TOLERATION | {"effect": "noschedule"}], "effect"),
        (check_tolerations, [TOLERATION | {"value": "m l"}], "cannot be the value"),
        (check_tolerations, [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}], "Kubernetes itself"),
        (check_tolerations, [TOLERATION, TOLERATION], "twice"),
        *((check_extra, {"rdma/hca": value}, "whole number") for value in (
            0, -1, "-1", "1e3", "500m", "0.1", 0.1, 1.0, "", None, True, "1Gi", "٣", "01", 10_001,
        )),
        *((check_extra, {"hugepages-2Mi": value}, "size like") for value in (
            "1", "3Mi", "-2Mi", "0Mi", "1e3", "2 Mi", "2mi", "", 2097152, None, "9" * 20,
        )),
        *((check_extra, {name: 1}, "no extended resource") for name in ("cpu", "memory", "hugepages-2", "rdma", "pods")),
        *((check_extra, {name: 1}, "counts GPUs") for name in ("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb")),
    ],
)  # fmt: skip
def test_what_kubernetes_would_refuse_is_refused_with_a_sentence(check: Any, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check(value)


def test_a_model_is_said_once() -> None:
    check_labels({"nvidia.com/gpu.product": "A100"})
    with pytest.raises(ValueError, match="already"):
        check_labels({"nvidia.com/gpu.product": "A100"}, "H100")


def test_a_form_shows_taints_as_it_reads_them() -> None:
    for text in ("team=ml:NoSchedule", "team=:NoExecute", "team:NoSchedule", "team=ml", "team"):
        found = taints(text)
        check_tolerations(found)
        assert taint_lines(found) == text
