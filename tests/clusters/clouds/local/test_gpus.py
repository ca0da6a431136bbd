"""GPUs: a task sees exactly its own, no GPU has two tasks, and the queue reports what it waits for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from clusters.clouds.drivers.base import CloudRefused, TaskSeen, Waiting
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


def test_a_run_waits_until_all_its_gpus_are_free(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--gpus", "4")
    first = agent.apply(role(SAY, gpus=3))
    agent.running(first)
    second = agent.apply(role(SAY, count=2, gpus=1))
    third = agent.apply(role("true", gpus=1))
    free = agent.apply(role("true"))
    waiting = agent.until(lambda: agent.task(third))
    assert (waiting.phase, waiting.reason, waiting.gpus) == ("Pending", "Unschedulable", ())
    assert waiting.message == "Waits for 1 GPU: 1 of 4 free; second in the queue."
    other = agent.task(second)
    assert other is not None
    assert other.message == "Waits for 2 GPUs: 1 of 4 free; first in the queue."
    assert agent.cloud.capacity().queue == (Waiting(second.id, 2, ""), Waiting(third.id, 1, ""))
    assert agent.ended(free).phase == "Succeeded"
    assert agent.task(third) == waiting
    agent.cloud.delete(first)
    assert len(agent.running(second, index=1).gpus) == 1
    assert agent.ended(third).phase == "Succeeded"
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
    # 100 millicores would fit, but they are reserved for the run that came first.
    behind = agent.apply(role("true", cpu_milli=100))
    told = agent.until(lambda: agent.task(waits))
    assert (told.phase, told.reason) == ("Pending", "WaitingForResources")
    assert told.message == f"Waits for 0.4 CPUs: 0.2 of {cpus / 1000:g} free; first in the queue."
    assert agent.until(lambda: agent.task(behind)).message.startswith("Waits for its turn")
    node = agent.cloud.capacity().nodes[0]
    assert (node.cpu_milli_free, node.memory_mb_free) == (0, node.memory_mb - 4 * 64)
    agent.cloud.delete(first)
    agent.running(waits, index=1)
    assert agent.ended(behind).phase == "Succeeded"
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


def test_a_deleted_run_leaves_the_queue(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--gpus", "1")
    agent.running(agent.apply(role(SAY, gpus=1)))
    run = agent.apply(role(SAY, gpus=1))
    agent.until(lambda: agent.task(run))
    agent.cloud.delete(run)
    agent.gone(run)
    end = agent.task(run)
    assert end is not None
    assert (end.phase, end.reason, end.scheduled_at) == ("Failed", "Stopped", None)
    assert agent.cloud.capacity().queue == ()


def test_a_simulated_gpu_is_of_the_model_asked_for(agent: Agent) -> None:
    assert agent.running(agent.apply(role(SAY, gpus=1, model="H200"))).gpu_model == "H200"
