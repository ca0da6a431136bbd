"""The example programs as a newcomer runs them: real TensorFlow processes that find each other through TF_CONFIG."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest

from datastores.files.previews import preview
from tests.examples.programs import EXAMPLES, start

# Seconds. Only broken programs take this long; loading TensorFlow alone takes many seconds on busy cores.
PATIENCE = 600
# One xdist group, so that one process loads TensorFlow for all of them.
pytestmark = [pytest.mark.timeout(3 * PATIENCE), pytest.mark.xdist_group("examples"), pytest.mark.trains]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates an input folder as the demonstration does."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("input")
    data = load_digits()
    np.savez_compressed(folder / "digits.npz", images=data.data.astype(np.uint8), labels=data.target.astype(np.uint8))
    return folder


def ended(process: ForkServerProcess) -> int:
    """Waits for the process and returns its exit status."""
    process.join(PATIENCE)
    assert process.exitcode is not None, "it goes on and on"
    return process.exitcode


class Job:
    """The tasks of one run as local processes; each writes its log next to the output."""

    def __init__(self, program: str, inputs: Path, output: Path, counts: dict[str, int], *more: str) -> None:
        self.argv = [program, "--input", str(inputs), "--output", str(output), *more]
        self.output = output
        self.held = ExitStack()
        self.cluster = addresses({role: count for role, count in counts.items() if role != "evaluator"}, self.held)
        self.tasks = [(role, index) for role, count in counts.items() for index in range(count)]
        self.processes: dict[tuple[str, int], ForkServerProcess] = {}

    def start(self, role: str, index: int) -> None:
        task = {"cluster": self.cluster, "task": {"type": role, "index": index}}
        self.processes[role, index] = start(self.argv, self.log_file(role, index), {"TF_CONFIG": json.dumps(task)})

    def kill(self, role: str, index: int) -> None:
        self.processes[role, index].kill()
        self.processes[role, index].join()

    def wait(self, role: str, index: int) -> int:
        return ended(self.processes[role, index])

    def runs(self, role: str, index: int) -> bool:
        return self.processes[role, index].is_alive()

    def log_file(self, role: str, index: int) -> Path:
        return self.output.parent / f"{self.output.name}-{role}-{index}.log"

    def log(self, role: str = "chief", index: int = 0) -> str:
        return self.log_file(role, index).read_text()

    def wait_for(self, text: str, role: str = "chief", index: int = 0, times: int = 1) -> None:
        end = time.monotonic() + PATIENCE
        while self.log(role, index).count(text) < times:
            assert self.runs(role, index), self.log(role, index)
            assert time.monotonic() < end, f"{text!r} never came: {self.log(role, index)}"
            time.sleep(0.05)


@contextmanager
def running(job: Job) -> Iterator[Job]:
    with job.held, ExitStack() as stack:
        for task in job.tasks:
            job.start(*task)
        stack.callback(lambda: [job.kill(*task) for task in job.processes])
        yield job


def addresses(counts: dict[str, int], held: ExitStack) -> dict[str, list[str]]:
    """Returns addresses with free ports. `held` keeps them bound but not listening: others cannot take them, tasks can bind."""

    def one() -> str:
        server = held.enter_context(socket.socket())
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{server.getsockname()[1]}"

    return {role: [one() for _ in range(count)] for role, count in counts.items()}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns each chart of a summaries folder as (step, value) in order."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    charts: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                charts.setdefault(value.tag, []).append((event.step, float(tensor_util.make_ndarray(value.tensor))))
    return charts


RECOGNISED = """
import sys, numpy as np, tensorflow as tf
data = np.load(sys.argv[2])
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answer = serve(images=tf.constant(data["images"] / 16.0, tf.float32))["probabilities"]
print(float((answer.numpy().argmax(1) == data["labels"]).mean()), flush=True)
"""


def recognised(model: Path, digits: Path) -> float:
    """Returns the share of all digits that a SavedModel classifies correctly. Loads it in a separate process."""
    program, log = model.parent / "recognised.py", model.parent / "recognised.log"
    program.write_text(RECOGNISED)
    assert ended(start([str(program), str(model), str(digits / "digits.npz")], log, {})) == 0, log.read_text()
    return float(log.read_text().splitlines()[-1])


def test_one_machine_trains_saves_and_goes_on_from_its_checkpoint(digits: Path, tmp_path: Path) -> None:
    argv = ["digits_single.py", "--input", str(digits), "--output", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    first = subprocess.run(
        [sys.executable, *argv], cwd=EXAMPLES, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert first.returncode == 0, first.stderr
    assert "global_step/sec" in first.stdout
    charts = scalars(tmp_path / "summaries")
    assert set(charts) == {"loss", "accuracy", "global_step/sec"}
    assert charts["loss"][-1][1] < charts["loss"][0][1]
    assert charts["accuracy"][-1][0] == 1500
    assert charts["accuracy"][-1][1] > 0.95
    assert recognised(tmp_path / "model", digits) > 0.95

    def again(*more: str) -> str:
        log = tmp_path / "again.log"
        assert ended(start([*argv, *more], log, {})) == 0, log.read_text()
        return log.read_text()

    # The model predicts a batch, as in a run that names a model version.
    log, named = tmp_path / "predict.log", {"PORTAL_MODEL_NAME": "digits", "PORTAL_MODEL_VERSION": "3"}
    predicting = ["digits_predict.py", "--model", str(tmp_path / "model"), "--output", str(tmp_path), "--batch", "1000"]
    assert ended(start(predicting, log, named)) == 0, log.read_text()
    accuracy = json.loads((tmp_path / "accuracy.json").read_text())
    assert log.read_text().endswith(f"digits/3 named 1797 digits: accuracy = {accuracy['accuracy']:.4f}\n")
    with (tmp_path / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = sum(row["label"] == row["predicted"] for row in rows)
    assert accuracy == {"model": "digits/3", "images": len(rows), "accuracy": right / len(rows)}
    assert (len(rows), right / len(rows) > 0.95) == (1797, True)
    assert all(0.1 <= float(row["probability"]) <= 1 for row in rows)

    # Repeating the command after the end succeeds and changes nothing.
    assert "Saved the model of step 1500" in again()
    said = again("--steps", "1600")
    assert "Continues after step 1500" in said
    assert "step 1600:" in said


def test_records_are_written_as_others_read_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert ended(start(["digits_records.py", "--output", str(tmp_path), "--parts", "3"], log, {})) == 0, log.read_text()
    assert log.read_text().splitlines()[-1] == "1797 records written, 1797 read again"
    data = (tmp_path / "digits.tfrecord-00002-of-00003").read_bytes()
    _, image, label, *_ = preview("digits.tfrecord-00002-of-00003", data, len(data)).rows
    assert (image[:3], label) == (("1", "image", "float"), ("", "label", "int64", "2"))


@pytest.mark.parametrize(
    ("program", "what", "said"),
    [("digits_single.py", "--input", "digits.npz"), ("digits_predict.py", "--model", "No SavedModel")],
)
def test_what_is_missing_is_said_in_the_log(tmp_path: Path, program: str, what: str, said: str) -> None:
    log = tmp_path / "log"
    assert ended(start([program, what, str(tmp_path), "--output", str(tmp_path)], log, {})) == 1
    assert said in log.read_text()


def test_parameter_servers_train_together(digits: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    roles = {"chief": 1, "ps": 1, "worker": 2, "evaluator": 1}
    with running(Job("digits_ps.py", digits, output, roles)) as job:
        assert job.wait("chief", 0) == 0, job.log()
        assert job.runs("ps", 0), "a parameter server serves until the run ends it"
        assert job.wait("evaluator", 0) == 0, job.log("evaluator")
        assert "step 1500:" in job.log("evaluator")
    assert "The master found 2 workers" in job.log()
    assert scalars(output / "summaries")["global_step/sec"][-1][1] > 1
    assert recognised(output / "model", digits) > 0.95
    assert "Traceback" not in job.log() + job.log("ps") + job.log("worker")


def test_a_master_that_was_killed_goes_on_with_the_same_servers(digits: Path, tmp_path: Path) -> None:
    roles = {"chief": 1, "ps": 1, "worker": 2}
    with running(Job("digits_ps.py", digits, tmp_path / "output", roles, "--steps", "600")) as job:
        job.wait_for("global_step/sec", times=6)
        job.kill("chief", 0)
        job.start("chief", 0)
        assert job.wait("chief", 0) == 0, job.log()
    assert "Continues after step" in job.log()
    assert "Saved the model of step 600" in job.log()


def test_a_lost_parameter_server_ends_the_master_and_its_next_start_goes_on(digits: Path, tmp_path: Path) -> None:
    roles = {"chief": 1, "ps": 1, "worker": 1}
    # More steps than the master can finish before the test sees progress; its next start uses the default number.
    with running(Job("digits_ps.py", digits, tmp_path / "output", roles, "--steps", "6000")) as job:
        job.wait_for("global_step/sec", times=5)
        job.kill("ps", 0)
        job.start("ps", 0)
        assert job.wait("chief", 0) != 0, job.log()
        del job.argv[-2:]
        # For some seconds the worker considers the server lost, and a start that needs it fails; the portal retries such runs.
        for _ in range(3):
            job.start("chief", 0)
            if (code := job.wait("chief", 0)) == 0:
                break
        assert code == 0, job.log()
    assert "Continues after step" in job.log()


def test_all_reduce_trains_in_step_and_goes_on_after_all_were_started_again(digits: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    roles = {"chief": 1, "worker": 1}
    for steps in (100, 300):
        with running(Job("digits_allreduce.py", digits, output, roles, "--steps", str(steps))) as job:
            assert job.wait("chief", 0) == 0, job.log()
            assert job.wait("worker", 0) == 0, job.log("worker")
    assert "chief 0: 2 replicas in step" in job.log()
    assert "Continues after step 100" in job.log()
    assert scalars(output / "summaries")["loss"][-1][1] < 0.4
