"""The preview of a new run on a Kubernetes cluster of 13 nodes with 8 GPUs, while the real scheduler places other pods."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.kube.loops import Loops
from tests.kube.plane import Plane
from tests.kube.test_fit import other_software
from tests.kube.test_gangs import loops  # noqa: F401  the fixture

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]


def gang(name: str, size: int, flavor: str) -> dict[str, Any]:
    roles = {"master": {"flavor": flavor}, "worker": {"flavor": flavor, "count": size - 1}}
    spec = {"image": "tensorflow", "command": "python train.py", "roles": roles}
    return {"kind": "cluster", "metadata": {"name": name, "appcode": "flight-demo"}, "spec": spec}


def test_what_a_gang_waits_for_is_told_before_it_is_submitted(
    plane: Plane,
    loops: Loops,  # noqa: F811
    people: Any,
    namespace: str,
) -> None:
    from tests.api.client import api_of

    api = api_of(people.root)

    def preview(size: int, flavor: str = "one-gpu") -> dict[str, Any]:
        status, answer = api.post("/appcodes/flight-demo/preview", gang("second", size, flavor))
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    # Other software has one GPU of each node: of eight free GPUs on one node there are none.
    nodes = list(plane.nodes())
    for name in nodes:
        other_software(plane, namespace, f"other-{name}", name, 1, 1)
    loops.until(lambda: preview(65)["message"] == "It needs 65 GPUs, and 91 of 104 are free.")
    answer = preview(2, "eight-gpus")
    assert (answer["fits"], answer["code"]) == ("waits", "Fragmented")
    free = "91 of 104 are free, but at most 7 on one node"
    assert answer["message"].startswith(f"It needs 8 GPUs on one node; {free} beside its other tasks.")
    for name in nodes:
        plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/other-{name}", gracePeriodSeconds="0")
    loops.until(lambda: preview(65)["message"] == "It needs 65 GPUs, and 104 of 104 are free.")
    assert preview(13, "eight-gpus")["code"] == "Fits"

    # From the moment the first of two gangs exists, the second waits: while the first is placed, and when it is.
    first = loops.create(people, "first", workers=64)
    seen = []
    while not seen or loops.run(first).phase != "Running":
        seen.append(preview(65))
        assert (seen[-1]["fits"], seen[-1]["code"]) == ("waits", "Gpus"), seen[-1]
        # A task that is placed while the preview is made may count twice, but never not at all.
        told = re.fullmatch(r"It needs 65 GPUs; (\d+) of 104 are free.* It starts as soon as .*", seen[-1]["message"])
        assert told, seen[-1]
        assert int(told[1]) <= 39, seen[-1]
        assert len(seen) < 1000
    assert "as 1 run before it takes" in seen[0]["message"]
    loops.until_running(first)
    waits = "It needs 65 GPUs; 39 of 104 are free. It starts as soon as enough are free."
    assert preview(65)["message"] == waits
    assert preview(39)["code"] == "Fits"
    assert preview(39)["code"] == "Fits"
    loops.disable(people, first)
    loops.until(lambda: preview(65)["code"] == "Fits")
    loops.until_nothing_is_left(loops.run(first))
