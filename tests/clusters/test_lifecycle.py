"""The phase of a run: typical examples, and properties that hold for every history."""

import datetime as dt
import signal
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusters.logs import failure
from clusters.runs.status.phase import TERMINAL, RunState, TaskState, next_phase

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
COUNTS = {"master": 1, "ps": 1, "worker": 2}


def task(role="worker", index=0, phase="Running", **more):
    return TaskState(role, index, more.pop("attempt", 0), phase, **more)


def everything(phase="Running"):
    return [task(role, index, phase) for role, count in COUNTS.items() for index in range(count)]


def told_apart(tasks):
    """Specifies `runs.phase_update._tasks_of`: the number of steady tasks by role, and the other tasks."""
    if any(task.attempt for task in tasks):
        return {}, tasks
    steady = [task for task in tasks if task.phase == "Running" and not task.is_in_trouble]
    return Counter(task.role for task in steady), [task for task in tasks if task not in steady]


def run(**more):
    return RunState(**{"phase": "Starting", "counts": COUNTS, "awaited": "master", **more})


def test_nothing_seen_yet_is_queued():
    assert next_phase(run(phase="Queued"), []).phase == "Queued"


def test_quota_is_named_while_the_portal_holds_it_back():
    decision = next_phase(run(phase="Queued", wait_reason="QuotaExceeded", wait_message="It waits for quota."), [])
    assert (decision.phase, decision.reason, decision.message) == ("Queued", "QuotaExceeded", "It waits for quota.")


@pytest.mark.parametrize(
    ("reason", "phase", "expected"),
    [
        ("Unschedulable", "Queued", "WaitingForGPUs"),
        ("WaitingForResources", "Queued", "WaitingForResources"),
        ("PullingImage", "Starting", "PullingImage"),
        ("FetchingInput", "Starting", "FetchingInput"),
        ("MakingEnvironment", "Starting", "MakingEnvironment"),
        ("Starting", "Starting", "StartingProgram"),
    ],
)
def test_waiting_names_its_cause(reason, phase, expected):
    tasks = [TaskState(t.role, t.index, 0, "Pending", reason=reason) for t in everything()]
    decision = next_phase(run(phase="Queued"), tasks)
    assert (decision.phase, decision.reason) == (phase, expected)
    assert decision.message


def test_running_when_every_task_runs():
    decision = next_phase(run(), everything())
    assert decision.phase == "Running"
    assert decision.ready == COUNTS


def test_master_done_ends_the_run_while_parameter_server_and_workers_still_run():
    tasks = [task("master", 0, "Succeeded"), task("ps"), task("worker", 0), task("worker", 1)]
    decision = next_phase(run(phase="Running"), tasks)
    assert (decision.verdict, decision.phase, decision.reason) == ("Succeeded", "Running", "Ending")
    gone = next_phase(run(phase="Running", verdict="Succeeded", verdict_message="Done.", gone=True), tasks)
    assert gone.phase == "Succeeded"


def test_all_workers_done_when_that_was_chosen():
    tasks = [task("master"), task("ps"), task("worker", 0, "Succeeded"), task("worker", 1)]
    assert next_phase(run(phase="Running", awaited="worker"), tasks).verdict == ""
    tasks[-1] = task("worker", 1, "Succeeded")
    assert next_phase(run(phase="Running", awaited="worker"), tasks).verdict == "Succeeded"


def test_a_failure_within_the_retries_goes_on():
    tasks = [*everything(), task("worker", 1, "Failed", exit_code=3)]
    tasks = [t for t in tasks if not (t.name == "worker-1" and t.phase == "Running")]
    decision = next_phase(run(phase="Running", retries=1), tasks)
    assert (decision.phase, decision.reason, decision.verdict) == ("Running", "Degraded", "")


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        # The program itself failed.
        ([{"exit_code": 7}], "Failed"),
        ([{"exit_code": 128 + signal.SIGSEGV}], "Failed"),
        ([{"exit_code": 128 + signal.SIGABRT}], "Failed"),
        # The task was killed from outside, once or twice; disruptions by the cloud never count.
        ([{"exit_code": 128 + signal.SIGKILL}], ""),
        ([{"exit_code": 128 + signal.SIGTERM}], ""),
        ([{"exit_code": 1, "reason": "OOMKilled"}], ""),
        ([{"exit_code": 137, "reason": "OOMKilled"}] * 2, "Failed"),
        ([{"exit_code": None, "reason": "Error"}], ""),
        ([{"exit_code": 137, "disrupted": True}] * 5, ""),
        ([{"exit_code": 137}, {"exit_code": 7}], "Failed"),
    ],
)
def test_unless_asked_nothing_is_tried_again_because_its_program_said_no(ends, verdict):
    state = run(phase="Running", counts={"master": 1}, retries=None)
    tasks = [task("master", attempt=n, phase="Failed", **end) for n, end in enumerate(ends)]
    assert next_phase(state, tasks).verdict == verdict
    assert next_phase(replace(state, retries=9), tasks).verdict == ""


@pytest.mark.parametrize(
    ("independent", "killed_at", "verdict"),
    [(False, 20, ""), (False, 40, "Failed"), (False, 5, "Failed"), (True, 20, "Failed")],
)
def test_who_failed_because_another_was_killed_is_started_again(independent, killed_at, verdict):
    """Cooperating programs fail when a peer dies while they run; independent copies do not."""
    at = lambda seconds: NOW + dt.timedelta(seconds=seconds)  # noqa: E731
    killed = task("worker", 0, "Failed", exit_code=137, finished_at=at(killed_at))
    back = task("worker", 0, "Running", attempt=1)
    failed = task("worker", 1, "Failed", exit_code=1, started_at=at(10), finished_at=at(30))
    state = run(phase="Running", counts={"worker": 2}, awaited="worker", retries=None, independent=independent)
    others = [task("worker", 0, "Succeeded", attempt=1)] if independent else [back]
    assert next_phase(state, [killed, *others, failed]).verdict == verdict


def test_a_task_that_failed_twice_is_said_to_have_failed_twice():
    ends = [
        task("master", attempt=n, phase="Failed", exit_code=7, disrupted=n == 1, message="no data") for n in range(3)
    ]
    found = next_phase(run(phase="Running", counts={"master": 1}, retries=1), ends)
    assert found.verdict_message == "master-0 failed twice (exit code 7): no data"


@pytest.mark.parametrize(
    ("more", "phase", "reason", "begins"),
    [
        ({"phase": "Starting"}, "Starting", "NodeLost", "Node gpu-1 does not answer."),
        ({"phase": "Running"}, "Running", "Degraded", "1 of 3 tasks are not running. Node gpu-1 does not answer."),
        ({"phase": "Starting", "desired": "ended"}, "Starting", "Ending", "Stopping, 1 task left. Node gpu-1 does not"),
    ],
)
def test_a_machine_that_does_not_answer_is_named_in_every_phase_before_all_other_trouble(more, phase, reason, begins):
    """The run stays stuck until an operator acts."""
    other = "Failed" if "desired" not in more else "Succeeded"
    tasks = [task("master", phase=other, disrupted=True), task("ps", phase=other, disrupted=True)]
    for seen in ("Pending", "Running"):
        silent = task("worker", 0, seen, reason="NodeLost", message="Node gpu-1 does not answer.")
        state = run(counts={"master": 1, "ps": 1, "worker": 1}, mode="service", **more)
        if more["phase"] == "Running":
            tasks = [task("master"), task("ps")]
        found = next_phase(state, [*tasks, silent])
        assert (found.phase, found.reason) == (phase, reason)
        assert found.message.startswith(begins)


@pytest.mark.parametrize(
    ("phase", "mode", "verdict"),
    [
        ("Starting", "batch", "Failed"),
        ("Starting", "service", "Failed"),
        # Its images exist: this pod moved while the registry was down.
        ("Running", "batch", ""),
        ("Running", "service", ""),
    ],
)
def test_a_run_that_never_ran_ends_when_its_image_could_not_be_pulled_for_too_long(phase, mode, verdict):
    message = "Image example/none:1 cannot be fetched (ImagePullBackOff): not found. It was tried for 15 minutes."
    tasks = [task("master"), task("ps"), task("worker", 0), task("worker", 1, "Pending", reason="ImageNotPulled")]
    tasks[-1] = replace(tasks[-1], message=message)
    found = next_phase(run(phase=phase, mode=mode), tasks)
    assert (found.verdict, found.verdict_message) == (verdict, message if verdict else "")
    assert message in found.message


@pytest.mark.parametrize(("phase", "retries"), [("Pending", None), ("Failed", None), ("Failed", 0)])
def test_a_run_whose_packages_cannot_be_installed_ends_with_the_sentence_about_them(phase, retries):
    said = (
        "Package absent>=2 was not found: the package index has none for Python 3.12.\nERROR: No matching distribution"
    )
    tasks = [
        task("master"),
        task("ps"),
        task("worker", 0),
        task("worker", 1, phase, reason="EnvironmentNotMade", message=said),
    ]
    found = next_phase(run(phase="Starting", retries=retries), tasks)
    assert (found.verdict, found.verdict_reason, found.verdict_message) == ("Failed", "EnvironmentNotMade", said)


def test_a_run_of_which_some_tasks_have_a_node_says_all_that_it_lacks():
    """Where a cloud places tasks one by one, each pending task reports only its own need."""
    message = "Waits for 1 GPU. Of 15 nodes: 15 without enough free GPUs."
    waits = [task("worker", n, "Pending", reason="Unschedulable", message=message) for n in range(111)]
    state = run(phase="Starting", counts={"ps": 1, "worker": 111}, gpus={"ps": 0, "worker": 1}, awaited="worker")
    found = next_phase(state, [task("ps"), *waits])
    assert (found.phase, found.reason) == ("Starting", "WaitingForGPUs")
    assert found.message == (
        "Waits for 111 GPUs: 111 of 112 tasks have no node. worker-0 waits for 1 GPU. Of 15 nodes: 15 without enough free GPUs."
    )
    assert next_phase(replace(state, gpus={}), [task("ps"), *waits]).message == message
    again = next_phase(replace(state, phase="Running"), [task("ps"), *waits])
    assert again.message.startswith(
        "111 of 112 tasks are not running. Waits for 111 GPUs: 111 of 112 tasks have no node."
    )


def test_independent_tasks_are_over_when_each_is_whatever_became_of_it():
    state = run(phase="Running", awaited="worker", counts={"worker": 3}, independent=True)
    failed = task("worker", 0, "Failed", exit_code=3)
    waits = task("worker", 2, "Pending", reason="Unschedulable")
    going = next_phase(state, [failed, task("worker", 1, "Succeeded"), waits])
    assert (going.phase, going.verdict, going.reason) == ("Running", "", "Degraded")
    done = next_phase(state, [failed, task("worker", 1, "Succeeded"), task("worker", 2, "Succeeded")])
    assert (done.verdict, done.verdict_message) == (
        "Failed", "1 of 3 workers failed. worker-0 failed with exit code 3.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("phases", "phase", "reason", "message"),
    [
        ("pp", "Starting", "StartingProgram", "0 of 2 tasks are ready; the programs of the others are starting."),
        ("rp", "Running", "", "1 of 5 tasks running, 0 finished, 4 to come."),
        ("ssr", "Running", "", "1 of 5 tasks running, 2 finished, 2 to come."),
        ("ss", "Running", "", "0 of 5 tasks running, 2 finished, 3 to come."),
        ("ssw", "Running", "Degraded", "0 of 5 tasks running, 2 finished, 3 to come. Waits for 1 GPU."),
        (
            "sfr", "Running", "Degraded",
            "1 of 5 tasks running, 1 finished, 1 failed, 2 to come. worker-1 failed with exit code 3.",
        ),
        ("ssssr", "Running", "", "1 of 5 tasks running, 4 finished."),
        ("sssss", "Running", "Ending", "All 5 workers have finished. What is left is being cleared away."),
        (
            "sfsss", "Running", "Ending",
            "1 of 5 workers failed. worker-1 failed with exit code 3. What is left is being cleared away.",
        ),
    ],
)  # fmt: skip
def test_where_tasks_take_turns_a_run_runs_as_soon_as_one_does(phases, phase, reason, message):
    names = {"p": "Pending", "w": "Pending", "r": "Running", "s": "Succeeded", "f": "Failed"}
    more = {"f": {"exit_code": 3}, "w": {"reason": "Unschedulable", "message": "Waits for 1 GPU."}}
    tasks = [task("worker", n, names[each], **more.get(each, {})) for n, each in enumerate(phases)]
    state = run(
        phase="Running" if set(phases) - {"p", "r"} else "Starting",
        awaited="worker", counts={"worker": 5}, independent=True, at_once=2,
    )  # fmt: skip
    found = next_phase(state, tasks)
    assert (found.phase, found.reason, found.message) == (phase, reason, message)
    blocked = next_phase(replace(state, blocked_reason="NamespaceQuota", blocked_message="No room."), tasks)
    assert ("No room." in blocked.message) == (phases in ("ss", "ssw"))


def test_a_run_that_was_taken_back_waits_again_once_none_of_its_tasks_is_left():
    back = run(phase="Running", blocked_reason="QueuedByKueue", blocked_message="It waits.")
    ended = [replace(each, disrupted=True) for each in everything("Failed")]
    assert next_phase(back, [*ended[1:], task("master", 0, "Running")]).phase == "Running"
    decision = next_phase(back, ended)
    assert (decision.phase, decision.reason, decision.message) == ("Queued", "QueuedByKueue", "It waits.")
    assert next_phase(replace(back, phase="Queued", blocked_reason="", blocked_message=""), ended).phase == "Starting"


def test_a_failure_beyond_the_retries_names_task_exit_code_and_last_lines():
    attempts = [
        task(
            "worker",
            1,
            "Failed",
            attempt=n,
            exit_code=3,
            log_tail="loading\nValueError: no such file\n",
        )
        for n in (0, 1)
    ]
    decision = next_phase(run(phase="Running", retries=1), [*everything()[:3], *attempts])
    assert decision.verdict == "Failed"
    headline, *lines = decision.verdict_message.split("\n")
    assert headline == "ValueError: no such file (worker-1, exit code 3, 2 attempts)"
    assert lines == ["loading", "ValueError: no such file"]
    gone = next_phase(run(verdict="Failed", verdict_message=decision.verdict_message), attempts)
    assert gone.message.split("\n")[0] == f"{headline}. What is left is being cleared away."


def test_of_several_that_failed_the_first_to_fail_is_named():
    tasks = [
        task("master", 0, "Failed", exit_code=1, finished_at=NOW, log_tail="ConnectionResetError: peer is gone"),
        task("worker", 1, "Failed", exit_code=1, finished_at=NOW - dt.timedelta(seconds=1), log_tail="MemoryError"),
    ]
    decision = next_phase(run(phase="Running"), [*everything()[1:3], *tasks])
    assert decision.verdict_message == "MemoryError (worker-1, exit code 1)"


TRACEBACK = """Traceback (most recent call last):
  File "/elearn/program/train.py", line 3, in <module>
    import nothere
"""


@pytest.mark.parametrize(
    ("log_end", "expected"),
    [
        (TRACEBACK + "ModuleNotFoundError: No module named 'nothere'\n", "ModuleNotFoundError: No module named 'nothere'"),
        (TRACEBACK + "my.package.Boom\nbye\n", "my.package.Boom"),
        ("e 1\n\x1b[31mValueError: a\x1b[0m\n\nDuring handling of the above exception, another exception occurred:\n\n"
         + TRACEBACK + "KeyError: 'b'\n[W] shutting down", "KeyError: 'b'"),
        ("".join(f"[rank0]: {line}\n" for line in (TRACEBACK + "RuntimeError: CUDA out of memory").split("\n")),
         "RuntimeError: CUDA out of memory"),
        ("    loss.backward()\ntorch.OutOfMemoryError: out of memory\n", "torch.OutOfMemoryError: out of memory"),
        ("panic: nil map\n\ngoroutine 1 [running]:\n\tmain.go:3\n", "panic: nil map"),
        ("10%\r20%\rstopped at 20%\r\n\n", "stopped at 20%"),
        ("Errors: 0\nbash: line 1: trian.py: command not found\n", "bash: line 1: trian.py: command not found"),
        (("OutOfRangeError: Graph execution error:\n\nDetected at node Next defined at (most recent call last):\n"
         '  File "main.py", line 110, in <module>\n\nEnd of sequence\n\t [[{{node Next}}]] [Op:step]\nI0000 bye'),
         "OutOfRangeError: Graph execution error: End of sequence"),
        (TRACEBACK + "AttributeError: Exception encountered when calling Net.call().\n\n\x1b[1mmodule 'k' has no attribute 'V'."
         "\x1b[0m\n\nArguments received by Net.call():\n  • x=1\nI0000 bye",
         "AttributeError: Exception encountered when calling Net.call(). module 'k' has no attribute 'V'."),
        ("", ""),
    ],
)  # fmt: skip
def test_the_line_that_says_why_is_the_last_error_or_the_last_line(log_end, expected):
    assert failure.why(log_end) == expected


@given(st.text())
def test_what_is_said_of_a_log_stands_in_it(log_end):
    found = failure.why(log_end)
    assert len(found) <= failure.MOST
    lines = "\n".join(failure.lines_of(log_end))
    assert all(word in lines for word in found.removesuffix("…").split(" "))


def test_disruptions_are_not_failures():
    tasks = [task("worker", 1, "Failed", attempt=n, disrupted=True, reason="Lost") for n in range(5)]
    assert next_phase(run(phase="Running"), [*everything()[:3], *tasks]).verdict == ""


def test_a_pod_too_many_that_was_taken_away_is_not_the_task():
    excess = task("ps", 0, "Failed", attempt=1, disrupted=True, reason="Stopped")
    decision = next_phase(run(), [*everything(), excess])
    assert (decision.phase, decision.ready) == ("Running", COUNTS)
    # A success stays final even if a silent node still counts an earlier attempt as running.
    done = next_phase(run(phase="Running"), [*everything(), task("master", 0, "Succeeded", attempt=1)])
    assert done.verdict == "Succeeded"


def test_a_service_is_never_finished_or_failed_by_its_tasks():
    tasks = [task("master", 0, "Succeeded"), *[task("worker", 0, "Failed", attempt=n, exit_code=1) for n in range(9)]]
    assert next_phase(run(mode="service", phase="Running"), tasks).verdict == ""


def test_output_that_could_not_be_stored_is_not_a_success():
    state = run(
        phase="Running", verdict="Succeeded", verdict_reason="Completed", verdict_message="The master has finished.",
        gone=True, stored=False, gone_message="unreachable",
    )  # fmt: skip
    decision = next_phase(state, everything("Succeeded"))
    assert (decision.phase, decision.reason) == ("Failed", "OutputNotStored")
    assert "unreachable" in decision.message


tasks_seen = st.lists(
    st.builds(
        TaskState,
        role=st.sampled_from(["master", "ps", "worker"]),
        index=st.integers(0, 2),
        attempt=st.integers(0, 3),
        phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        reason=st.sampled_from(
            ["", "Unschedulable", "FetchingInput", "BackOff", "NodeLost", "ImageNotPulled", "OOMKilled"]
        ),
        exit_code=st.none() | st.integers(0, 255),
        disrupted=st.booleans(),
        log_tail=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40),
    ),
    max_size=12,
    unique_by=lambda t: (t.role, t.index, t.attempt),
)
runs = st.builds(
    RunState,
    phase=st.sampled_from(["Queued", "Starting", "Running"]),
    counts=st.fixed_dictionaries({"master": st.just(1), "ps": st.integers(0, 2), "worker": st.integers(0, 3)}),
    mode=st.sampled_from(["batch", "service"]),
    awaited=st.sampled_from(["master", "worker"]),
    retries=st.none() | st.integers(0, 2),
    independent=st.booleans(),
    desired=st.sampled_from(["running", "ended"]),
    stop_reason=st.just("Disabled"),
    stop_message=st.just("Stopped by alice."),
    refusal=st.sampled_from(["", "No."]),
    storage_state=st.sampled_from(["", "fetching", "ready", "storing", "failed", "stored"]),
    gone=st.booleans(),
    stored=st.booleans(),
)


def after(state, decision):
    return RunState(
        **{
            **{name: getattr(state, name) for name in state.__dataclass_fields__},
            "phase": decision.phase,
            "verdict": decision.verdict,
            "verdict_reason": decision.verdict_reason,
            "verdict_message": decision.verdict_message,
        }
    )


@given(runs, tasks_seen)
def test_the_order_of_sightings_does_not_matter(state, tasks):
    assert next_phase(state, tasks) == next_phase(state, list(reversed(tasks)))


@given(runs, tasks_seen)
def test_steady_tasks_need_only_be_counted(state, tasks):
    steady, others = told_apart(tasks)
    assert next_phase(state, others, steady) == next_phase(state, tasks)


@given(runs, tasks_seen)
def test_asking_twice_changes_nothing(state, tasks):
    once = next_phase(state, tasks)
    assert next_phase(after(state, once), tasks).phase == once.phase
    assert next_phase(after(state, once), tasks).verdict == once.verdict


@given(runs, tasks_seen, tasks_seen, st.booleans())
def test_a_verdict_never_changes_unless_the_output_was_lost(state, tasks, later, gone):
    once = next_phase(state, tasks)
    state = after(state, once)
    again = next_phase(RunState(**{**state.__dict__, "gone": state.gone or gone}), later)
    if once.verdict:
        assert again.verdict == once.verdict or again.reason == "OutputNotStored"


@example(run(phase="Queued", gone=True), [task("master", 0, "Pending", reason="ImageNotPulled")])
@given(runs, tasks_seen)
def test_a_run_is_over_only_when_nothing_of_it_is_left(state, tasks):
    decision = next_phase(state, tasks)
    assert (decision.phase in TERMINAL) == state.gone
    assert decision.message


@given(runs, tasks_seen)
def test_what_is_over_stays_over(state, tasks):
    over = after(state, next_phase(RunState(**{**state.__dict__, "gone": True}), tasks))
    assert next_phase(over, []).phase == over.phase
