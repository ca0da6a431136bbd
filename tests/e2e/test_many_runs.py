"""Many runs as one piece of work, with real TensorFlow and every program of the portal killed in the middle: data is prepared,
a sweep trains it in folds, the best is trained again, a hook writes down what became of it, and its curve is looked at."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from clusters.run_hooks.examples import SAVE
from tests.browser import chromium
from tests.e2e.test_applications import LATE, sign_in
from tests.running import Client, Portal, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("applications")]
PREPARE = """python - <<'END'
import numpy as np
from sklearn.datasets import load_digits
images, labels = load_digits(return_X_y=True)
for part in range(6):
    np.savez(f"/elearn/output/part-{part}.npz", images=images[part::6] / 16, labels=labels[part::6])
END"""
# A fold has what it learns from beside what it is judged by; without folds all of it is both.
TRAIN = """python - <<'END'
import glob
import numpy as np
import tensorflow as tf

def load(folder):
    parts = [np.load(path) for path in sorted(glob.glob(f"/elearn/input/{folder}*.npz"))]
    kinds = {"images": "float32", "labels": "int64"}
    return [tf.constant(np.concatenate([part[key] for part in parts]), kind) for key, kind in kinds.items()]

folded = glob.glob("/elearn/input/validation/*.npz")
(images, labels), (others, truth) = (load("train/"), load("validation/")) if folded else (load(""), load(""))
weights, bias = tf.Variable(tf.zeros([64, 10])), tf.Variable(tf.zeros([10]))
for step in range(1, 41):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights + bias))
    for variable, slope in zip((weights, bias), tape.gradient(loss, (weights, bias))):
        variable.assign_sub({lr} * slope)
    right = tf.reduce_mean(tf.cast(tf.argmax(others @ weights + bias, 1) == truth, tf.float32))
    print(f"step {step}: accuracy = {right:.4f}", flush=True)
tf.saved_model.save(tf.Module(), "/elearn/output/model")
END"""
ONE = {"image": "tensorflow-2-21", "output": "demo-output"}
GPU = {"master": {"flavor": "middle-1-gpu"}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def test_the_best_of_many_is_trained_again_and_written_down(browser: Browser, portal_up: Portal) -> None:
    alice = Client(portal_up, "alice")
    save = {"name": "save", "command": SAVE, "outputPath": "models/{name}/{run}", "flavor": "small"}
    template = {**ONE, "command": TRAIN, "input": {"from": "prepare"}, "roles": GPU, "hooks": [save]}
    parameters = {"lr": {"type": "choice", "values": [0.001, 1]}}
    goal = {"metric": "accuracy", "direction": "maximize"}
    search = {
        "template": template,
        "parameters": parameters,
        "goal": goal,
        "sampler": "grid",
        "folds": 3,
        "parallel": 3,
    }
    stages = [
        {"name": "prepare", "spec": {**ONE, "command": PREPARE, "roles": {"master": {"flavor": "middle"}}}},
        {"name": "search", "sweep": search},
        {"name": "final", "best": "search"},
    ]
    manifest = {"kind": "pipeline", "metadata": {"name": "all", "appcode": "ops-demo"}, "spec": {"stages": stages}}
    alice.call("POST", "/appcodes/ops-demo/pipelines", manifest)
    alice.call("POST", "/appcodes/ops-demo/pipelines/all/run", {})

    def sweep() -> Any:
        return alice.call("GET", "/appcodes/ops-demo/sweeps/all-search-1")

    def status() -> Any:
        return alice.call("GET", "/appcodes/ops-demo/pipelines/all")["status"]

    def phases() -> dict[str, str]:
        return {stage["name"]: stage["phase"] for stage in status()["stages"]}

    assert eventually(lambda: phases()["search"] == "Running", 120), status()
    trials = "/appcodes/ops-demo/clusters?partOf=sweeps/all-search-1"
    assert eventually(lambda: alice.call("GET", trials)["items"], 60), status()
    for pid in portal_up.programs():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def is_over() -> bool:
        with suppress(OSError):
            return bool(status()["phase"] in ("Succeeded", "Failed", "Stopped"))
        return False

    assert eventually(is_over, 400), status()
    assert phases() == {"prepare": "Succeeded", "search": "Succeeded", "final": "Succeeded"}, status()
    found = sweep()["status"]
    assert (found["trials"], found["best"]["parameters"]) == ({"Succeeded": 6}, {"lr": 1})
    assert found["best"]["sd"] > 0
    # No trial was lost and none made twice, and the whole is the sum of its tasks.
    runs = [each["status"] for each in alice.call("GET", trials)["items"]]
    assert [run["run"] for run in runs] == [1] * 6
    used = [
        alice.call("GET", f"/appcodes/ops-demo/clusters/all-search-1-{n}-{fold}/usage")
        for n in (0, 1)
        for fold in (1, 2, 3)
    ]
    seconds = [segment["gpuSeconds"] for each in used for segment in each["segments"]]
    assert found["gpuSeconds"] == sum(seconds) >= len(seconds) == 6

    final = next(stage for stage in status()["stages"] if stage["name"] == "final")
    path = f"/appcodes/ops-demo/clusters/{final['cluster']}"

    def hooks() -> Any:
        return alice.call("GET", path)["status"]["hooks"]

    assert eventually(lambda: hooks()[0]["state"] == "Succeeded", 120), hooks()
    written = f"/appcodes/ops-demo/datastores/demo-output/files/models/{final['cluster']}/1/model-version.json"
    version = alice.call("GET", written)
    assert (version["cluster"], version["input"]["files"]) == (final["cluster"], 6), json.dumps(version)
    assert version["metrics"]["accuracy"] > 0.8

    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{portal_up.origin}/sweeps/ops-demo/all-search-1")
        sign_in(page, portal_up, "alice")
        expect(page.get_by_text("6 of 6").first).to_be_visible(timeout=LATE)
        expect(page.locator(".chart").first).to_be_visible(timeout=LATE)
        page.goto(f"{portal_up.origin}/clusters/ops-demo/{final['cluster']}/metrics")
        expect(page.locator(".chart h2").first).to_have_text("accuracy", timeout=LATE)
