"""GPUs: a task sees exactly its own, and no GPU has two tasks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from clusters.clouds.drivers.base import CloudRefused, TaskSeen
from tests.clusters.clouds.local.agents import Agent, role

SAY = 'echo "$CUDA_VISIBLE_DEVICES"; sleep 600'


@pytest.mark.as_user
def test_tasks_of_one_run_see_different_gpus(agent: Agent) -> None:
    run = agent.apply(role(SAY, count=4, gpus=2), role('echo "[$CUDA_VISIBLE_DEVICES]"', name="ps"))
    held = []
    for index in range(4):
        task = agent.running(run, index=index)
        assert agent.until_output(run, "\n", index=index) == ",".join(task.gpus) + "\n"
        assert task.gpu_model == "simulated"
        held += task.gpus
    assert sorted(held) == [str(number) for number in range(8)]
    agent.ended(run, "ps")
    assert agent.output(run, "ps") == "[]\n"
    node = agent.cloud.capacity().nodes[0]
    assert (node.gpus, node.gpus_free, node.simulated) == (8, 0, True)


def test_a_run_starts_as_soon_as_all_its_gpus_are_free_whatever_came_before(make_agent: Callable[..., Agent]) -> None:
    """The portal decides the order. Here a run only waits for processes that have not ended yet."""
    agent = make_agent("--gpus", "4")
    first = agent.apply(role(SAY, gpus=3))
    agent.running(first)
    second = agent.apply(role(SAY, count=2, gpus=1))
    waiting = agent.until(lambda: agent.task(second))
    assert (waiting.phase, waiting.reason, waiting.gpus) == ("Pending", "Unschedulable", ())
    assert waiting.message == "It starts as soon as what ran in its place before has ended."
    assert agent.ended(agent.apply(role("true", gpus=1))).phase == "Succeeded"
    assert agent.task(second) == waiting
    agent.cloud.delete(first)
    assert len(agent.running(second, index=1).gpus) == 1
    seen = [item for item in agent.seen if isinstance(item, TaskSeen)]
    released = next(item.finished_at for item in seen if item.run_id == first.id and item.phase == "Failed")
    assigned = next(item.scheduled_at for item in seen if item.run_id == second.id and item.gpus)
    assert released is not None
    assert assigned is not None
    assert released <= assigned


def test_a_run_waits_for_cpu_and_memory_too_and_what_can_never_fit_is_refused(
    make_agent: Callable[..., Agent],
) -> None:
    agent = make_agent("--cpu-overcommit", "1")
    node = agent.cloud.capacity().nodes[0]
    cpus, gib = node.cpu_milli, node.memory_mb / 1024
    assert cpus == 1000 * len(os.sched_getaffinity(0))
    first = agent.apply(role("sleep 600", cpu_milli=cpus - 200))
    agent.running(first)
    waits = agent.apply(role("sleep 600", count=2, cpu_milli=200))
    told = agent.until(lambda: agent.task(waits))
    assert (told.phase, told.reason) == ("Pending", "WaitingForResources")
    node = agent.cloud.capacity().nodes[0]
    assert (node.cpu_milli_free, node.memory_mb_free) == (200, node.memory_mb - 64)
    agent.cloud.delete(first)
    agent.running(waits, index=1)
    # After a kill, the new agent still counts what runs.
    agent.signal(signal.SIGKILL)
    agent.start()
    assert agent.cloud.capacity().nodes[0].cpu_milli_free == cpus - 400
    with pytest.raises(CloudRefused, match=f"needs {2 * cpus / 1000:g} CPUs at once, and this machine has"):
        agent.cloud.apply(agent.plan(role("true", count=2, cpu_milli=cpus)))
    with pytest.raises(CloudRefused, match=f"GiB of memory at once, and this machine has {gib:.4g} GiB of memory"):
        agent.cloud.apply(agent.plan(role("true", memory_mb=node.memory_mb + 1)))


def test_a_finished_task_gives_its_gpus_back_while_others_run(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--gpus", "2")
    run = agent.apply(role("test $TASK_INDEX = 0 || sleep 600", count=2, gpus=1))
    agent.ended(run, index=0)
    next_run = agent.apply(role("true", gpus=1))
    assert agent.ended(next_run).phase == "Succeeded"


def test_a_second_attempt_keeps_the_gpus_before_anybody_else(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--gpus", "1")
    run = agent.apply(role("sleep 0.3; exit 1", gpus=1, retries=1))
    agent.running(run)
    other = agent.apply(role("true", gpus=1))
    second = agent.ended(run, attempt=1)
    first = agent.ended(run)
    after = agent.ended(other)
    assert first.gpus == second.gpus == after.gpus == ("0",)
    assert first.finished_at is not None
    assert second.scheduled_at is not None
    assert first.finished_at < second.scheduled_at
    assert after.scheduled_at is not None
    assert second.finished_at is not None
    assert second.finished_at <= after.scheduled_at


def test_a_deleted_run_that_waits_never_starts(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--gpus", "1")
    agent.running(agent.apply(role(SAY, gpus=1)))
    run = agent.apply(role(SAY, gpus=1))
    agent.until(lambda: agent.task(run))
    agent.cloud.delete(run)
    agent.gone(run)
    end = agent.task(run)
    assert end is not None
    assert (end.phase, end.reason, end.scheduled_at) == ("Failed", "Stopped", None)


def test_a_simulated_gpu_is_of_the_model_asked_for(agent: Agent) -> None:
    assert agent.running(agent.apply(role(SAY, gpus=1, model="H200"))).gpu_model == "H200"
