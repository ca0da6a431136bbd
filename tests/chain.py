"""A whole pipeline: a stage prepares data, a sweep trains on it in folds, the best trial is trained again,
and a hook saves a description of the model. The same pipeline runs on the local cloud and on Kubernetes.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from typing import Any

from clusters.manifest.hook_starters import SAVE
from tests.running import Client, Portal, eventually

PREPARE = """python - <<'END'
import numpy as np
from sklearn.datasets import load_digits
images, labels = load_digits(return_X_y=True)
for part in range(6):
    np.savez(f"/elearn/output/part-{part}.npz", images=images[part::6] / 16, labels=labels[part::6])
END"""
# In a fold, train/ and validation/ are separate folders; without folds, all data serves as both. Softmax regression in NumPy
# starts in an instant; what tasks of TensorFlow do is for other tests. The pause leaves time to be killed in.
TRAIN = """python - <<'END'
import glob, time
import numpy as np

def load(folder):
    parts = [np.load(path) for path in sorted(glob.glob(f"/elearn/input/{folder}*.npz"))]
    return [np.concatenate([part[key] for part in parts]) for key in ("images", "labels")]

folded = glob.glob("/elearn/input/validation/*.npz")
(images, labels), (others, truth) = (load("train/"), load("validation/")) if folded else (load(""), load(""))
weights, bias = np.zeros((64, 10)), np.zeros(10)
for step in range(1, 41):
    scores = np.exp(images @ weights + bias)
    slope = (scores / scores.sum(1, keepdims=True) - np.eye(10)[labels]) / len(labels)
    weights, bias = weights - {lr} * images.T @ slope, bias - {lr} * slope.sum(0)
    right = (np.argmax(others @ weights + bias, 1) == truth).mean()
    print(f"step {step}: accuracy = {right:.4f}", flush=True)
    time.sleep(0.1)
np.savez("/elearn/output/model.npz", weights=weights, bias=bias)
END"""
ONE = {"image": "tensorflow-2-21", "output": "demo-output"}
RATES = [0.001, 1]


class Chain:
    """The pipeline `all` of ops-demo: two learning rates × `folds`, at most `parallel` at a time; `gpu` and `cpu` are flavors."""

    def __init__(self, portal: Portal, *, folds: int, parallel: int, gpu: str, cpu: str) -> None:
        self.portal, self.alice, self.folds = portal, Client(portal, "alice"), folds
        save = {"name": "save", "command": SAVE, "outputPath": "models/{name}/{run}", "flavor": "small"}
        roles = {"master": {"flavor": gpu}}
        template = {**ONE, "command": TRAIN, "input": {"from": "prepare"}, "roles": roles, "hooks": [save]}
        search = {
            "template": template,
            "parameters": {"lr": {"type": "choice", "values": RATES}},
            "goal": {"metric": "accuracy", "direction": "maximize"},
            "sampler": "grid",
            "folds": folds,
            "parallel": parallel,
        }
        stages = [
            {"name": "prepare", "spec": {**ONE, "command": PREPARE, "roles": {"master": {"flavor": cpu}}}},
            {"name": "search", "sweep": search},
            {"name": "final", "best": "search"},
        ]
        manifest = {"kind": "pipeline", "metadata": {"name": "all", "appcode": "ops-demo"}, "spec": {"stages": stages}}
        self.get("POST", "/pipelines", manifest)
        self.get("POST", "/pipelines/all/run", {})

    def get(self, method: str, path: str, body: object = None) -> Any:
        return self.alice.call(method, f"/appcodes/ops-demo{path}", body)

    def status(self) -> Any:
        return self.get("GET", "/pipelines/all")["status"]

    def phases(self) -> dict[str, str]:
        return {stage["name"]: stage["phase"] for stage in self.status()["stages"]}

    def trials(self) -> list[dict[str, Any]]:
        return list(self.get("GET", "/clusters?partOf=sweeps/all-search-1")["items"])

    def until(self, stage: str, seconds: float) -> None:
        """Waits until the stage runs."""
        assert eventually(lambda: self.phases()[stage] == "Running", seconds), self.status()

    def kill_everything(self) -> None:
        """Kills every program of the portal at once, its database too; the supervisor restarts them."""
        for pid in self.portal.programs():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def answers(self) -> bool:
        with suppress(OSError):
            return bool(self.status())
        return False

    def until_over(self, seconds: float) -> None:
        def is_over() -> bool:
            with suppress(OSError):
                return bool(self.status()["phase"] in ("Succeeded", "Failed", "Stopped"))
            return False

        assert eventually(is_over, seconds), self.status()
        assert self.phases() == {"prepare": "Succeeded", "search": "Succeeded", "final": "Succeeded"}, self.status()

    def nothing_is_lost_or_double(self) -> None:
        """Each trial was created once and ran once, the better rate won, and the sweep's GPU time is the sum of its trials'."""
        found = self.get("GET", "/sweeps/all-search-1")["status"]
        count = len(RATES) * self.folds
        assert (found["trials"], found["best"]["parameters"]) == ({"Succeeded": count}, {"lr": 1}), found
        assert found["best"]["sd"] > 0, found
        runs = [each["status"]["run"] for each in self.trials()]
        assert runs == [1] * count, runs
        used = [
            self.get("GET", f"/clusters/all-search-1-{n}-{fold}/usage")
            for n in range(len(RATES))
            for fold in range(1, self.folds + 1)
        ]
        seconds = [segment["gpuSeconds"] for each in used for segment in each["segments"]]
        assert found["gpuSeconds"] == sum(seconds) >= len(seconds) == count, (found, used)

    @property
    def final(self) -> str:
        """Name of the cluster trained with the best rate."""
        return str(next(stage for stage in self.status()["stages"] if stage["name"] == "final")["cluster"])

    def the_hook_has_written(self) -> None:
        """The hook's file names the model's cluster, input and metrics."""

        def hooks() -> Any:
            return self.get("GET", f"/clusters/{self.final}")["status"]["hooks"]

        assert eventually(lambda: hooks()[0]["state"] == "Succeeded", 120), hooks()
        version = self.get("GET", f"/datastores/demo-output/files/models/{self.final}/1/model-version.json")
        assert (version["cluster"], version["input"]["files"]) == (self.final, 6), json.dumps(version)
        assert version["metrics"]["accuracy"] > 0.8
