"""What tasks do and how they end, seen through a real agent's watch."""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Callable

import pytest

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import CloudError, CloudRefused, ImageRef, LogChunk, RunGone, TaskSeen, WatchExpired
from tests.clusters.clouds.local.agents import Agent, next_batch, role


def test_lines_have_the_times_at_which_they_were_written(agent: Agent) -> None:
    """Test and task share a clock: each line contains the time at which it was written."""
    say = "import time\nfor n in range(60):\n print(n, time.time(), flush=True)\n time.sleep(0.03)\n"
    say += "print(*range(9**5), sep='\\n')"
    run = agent.apply(role(f'python -c "{say}"'))
    assert agent.ended(run).phase == "Succeeded"

    def read(**where: int) -> LogChunk:
        return agent.cloud.log(run, "worker", 0, attempt=0, limit=1 << 20, **where)

    whole = read()
    lines = whole.data.splitlines(keepends=True)
    starts = [sum(map(len, lines[:n])) for n in range(60)]
    said = [float(line.split()[1]) * 1e6 for line in lines[:60]]
    told = [marks.at(whole.marks, start) for start in starts]
    assert all(-2e3 < time - written < 1e6 for time, written in zip(told, said, strict=True))
    assert told == sorted(told)
    assert len(set(told)) > 50
    assert len(whole.marks) < len(whole.data) / 2
    for n in (0, 1, 30, 59, 60, 40_000):
        at = read(line=n)
        assert (at.data.splitlines()[0], at.line) == (lines[n].strip(), n)
        assert read(offset=at.start).line == n
    assert read(line=10**9).start == len(whole.data)
    late = read(since=told[30])
    assert marks.at(late.marks, late.start) == told[30]
    assert late.line == told.index(told[30])
    assert read(since=told[30] + 1).line == next(n for n, time in enumerate(told) if time > told[30])
    assert read(since=2**60).data == b""
    assert read(since=0).start == 0


@pytest.mark.as_user
def test_a_task_runs_to_its_end(agent: Agent) -> None:
    begin = time.time()
    run = agent.apply(role("echo hello; echo world >&2"))
    end = agent.ended(run)
    assert (end.phase, end.exit_code, end.reason, end.disrupted, end.estimated) == ("Succeeded", 0, "", False, False)
    assert agent.output(run) == "hello\nworld\n"
    times = [moment.timestamp() for moment in (end.scheduled_at, end.started_at, end.finished_at) if moment]
    assert len(times) == 3
    assert [begin, *times] == sorted([begin, *times])
    phases = [item.phase for item in agent.seen if isinstance(item, TaskSeen)]
    assert phases == ["Pending", "Running", "Succeeded"]


@pytest.mark.parametrize(
    "text", ["$(touch /tmp/x) `id` $HOME", "'single' \"double\" \\", "line\nline\ttab", "Grüße, 你好 🙂", "a;b|c&d>e*"]
)
def test_arguments_arrive_exactly_as_typed(agent: Agent, text: str) -> None:
    plan = agent.plan(role(""))
    argv = ("python", "-c", "import sys; sys.stdout.write(sys.argv[1])", text)
    agent.cloud.apply(dataclasses.replace(plan, roles=(dataclasses.replace(plan.roles[0], argv=argv),)))
    assert agent.ended(plan.run).exit_code == 0
    assert agent.output(plan.run) == text


def test_variables_are_expanded_as_on_kubernetes(agent: Agent) -> None:
    env = {"A": "$(TASK_INDEX)", "B": "b$(A) $$(A) $(UNKNOWN) 'quoted' $HOME", "CUDA_VISIBLE_DEVICES": "99"}
    env |= {"WHO": "$(ALL)-$(TASK_INDEX)"}
    shown = 'printf "%s" "$B|$TASK_INDEX|$CUDA_VISIBLE_DEVICES|$CUDA_DEVICE_ORDER|$WHO"'
    plan = dataclasses.replace(agent.plan(role(shown, count=2, env=env)), shared={"ALL": "$(A)"})
    agent.cloud.apply(plan)
    agent.ended(plan.run, index=1)
    assert agent.output(plan.run, index=1) == "b1 $(A) $(UNKNOWN) 'quoted' $HOME|1||PCI_BUS_ID|$(A)-1"


def test_a_failure_says_its_exit_code_and_last_lines(agent: Agent) -> None:
    run = agent.apply(role("for i in $(seq 2000); do echo line $i; done; printf 'a\\0b'; exit 3"))
    end = agent.ended(run)
    assert (end.phase, end.reason, end.exit_code, end.message) == ("Failed", "Error", 3, "")
    assert end.log_tail.endswith("line 2000\na�b")
    assert end.log_tail.startswith("line ")
    assert len(end.log_tail.encode()) <= 4096


@pytest.mark.as_user
def test_a_death_by_signal_is_told(agent: Agent) -> None:
    end = agent.ended(agent.apply(role("kill -SEGV $$")))
    assert (end.phase, end.exit_code) == ("Failed", 128 + 11)
    assert "signal 11" in end.message


@pytest.mark.as_user
def test_a_program_that_does_not_exist_is_told(agent: Agent) -> None:
    import dataclasses

    plan = agent.plan(role(""))
    agent.cloud.apply(
        dataclasses.replace(plan, roles=(dataclasses.replace(plan.roles[0], argv=("no-such-program", "--x")),))
    )
    end = agent.ended(plan.run)
    assert (end.phase, end.exit_code, end.started_at) == ("Failed", 127, None)
    assert end.message == "'no-such-program' cannot be started: no such program"


def test_a_failed_task_is_started_again_up_to_its_limit(agent: Agent) -> None:
    run = agent.apply(role("echo try; exit 1", retries=1), role("exit 0", name="ps"))
    first, second = agent.ended(run), agent.ended(run, attempt=1)
    assert first.uid != second.uid
    assert (first.attempt, second.attempt) == (0, 1)
    backoff = [item for item in agent.seen if isinstance(item, TaskSeen) and item.reason == "BackOff"]
    assert [item.uid for item in backoff] == [second.uid]
    agent.cloud.delete(run)
    agent.gone(run)
    attempts = {(item.role, item.attempt) for item in agent.seen if isinstance(item, TaskSeen)}
    assert attempts == {("worker", 0), ("worker", 1), ("ps", 0)}


def test_a_task_that_succeeds_on_its_second_attempt_has_succeeded(agent: Agent) -> None:
    run = agent.apply(role("test -e /elearn/output/there || { touch /elearn/output/there; exit 9; }", retries=3))
    assert agent.ended(run).exit_code == 9
    assert agent.ended(run, attempt=1).phase == "Succeeded"


def test_a_service_is_kept_alive_also_when_it_ends_well(agent: Agent) -> None:
    run = agent.apply(role("exit 0", restart="Always"))
    assert agent.ended(run).phase == "Succeeded"
    agent.running(run, attempt=1)


def test_a_megabyte_on_one_line_is_fine(agent: Agent) -> None:
    run = agent.apply(role("head -c 1048576 /dev/zero | tr '\\0' x; echo end; exit 1"))
    end = agent.ended(run)
    output = agent.output(run)
    assert output == "x" * 1048576 + "end\n"
    assert end.log_tail.endswith("xend\n")
    tail = agent.cloud.log(run, "worker", 0, attempt=0, tail=5)
    assert (tail.data, tail.complete) == (b"xend\n", True)
    part = agent.cloud.log(run, "worker", 0, attempt=0, offset=1048570, limit=8)
    assert (part.data, part.offset, part.complete) == (b"xxxxxxen", 1048578, False)
    assert agent.cloud.log(run, "worker", 7, attempt=0).complete


def test_an_endless_log_is_cut_and_keeps_its_end(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--log-limit", "100000")
    run = agent.apply(role("seq 100000; echo the end"))
    agent.ended(run)
    output = agent.output(run)
    assert len(output) < 100_000 + 65_536 + 200
    assert output.startswith("1\n2\n3\n")
    assert "[The log is longer than 100000 bytes; only its end follows.]" in output
    assert output.endswith("100000\nthe end\n")


@pytest.mark.as_user
def test_deleting_stops_tasks_that_listen(agent: Agent) -> None:
    run = agent.apply(role("trap 'echo bye; exit 0' TERM; echo up; sleep 600 & wait", count=6), grace=150)
    for index in range(6):
        agent.until_output(run, "up", index=index)
    begin = time.monotonic()
    agent.cloud.delete(run)
    assert agent.gone(run) == RunGone(run.id)
    assert time.monotonic() - begin < 60  # half a second on an idle machine; never the grace period
    for index in range(6):
        end = agent.ended(run, index=index)
        assert (end.phase, end.reason, end.disrupted) == ("Succeeded", "Stopped", False)
        assert "bye" in agent.output(run, index=index)


@pytest.mark.as_user
def test_deleting_kills_tasks_that_do_not_listen_and_their_children(agent: Agent) -> None:
    child = f"sleep {uuid.uuid4().int % 10**9 + 10**9}"  # unique to this test: others run in parallel
    script = f"trap '' TERM; (setsid {child} &) ; echo up; while :; do sleep 0.1; done"
    run = agent.apply(role(script), grace=1)
    agent.until_output(run, "up")
    agent.cloud.delete(run)
    agent.gone(run)
    end = agent.ended(run)
    assert (end.reason, end.exit_code) == ("Stopped", 128 + 9)
    assert not [line for line in _commands() if line == child]


def test_a_task_takes_its_children_along(agent: Agent) -> None:
    child = f"sleep {uuid.uuid4().int % 10**9 + 10**9}"
    run = agent.apply(role(f"(setsid {child} &); exit 0"))
    agent.ended(run)
    assert not [line for line in _commands() if line == child]


def test_deleting_twice_and_the_unknown_is_fine_and_nothing_comes_back(agent: Agent) -> None:
    plan = agent.plan(role("sleep 60"))
    agent.cloud.apply(plan)
    agent.cloud.apply(plan)
    agent.running(plan.run)
    agent.cloud.delete(plan.run)
    agent.cloud.delete(plan.run)
    agent.gone(plan.run)
    agent.cloud.delete(plan.run)
    agent.until(lambda: agent.seen.count(RunGone(plan.run.id)) >= 2)
    agent.cloud.apply(plan)
    unknown = agent.plan(role("sleep 60"))
    agent.cloud.delete(unknown.run)
    agent.gone(unknown.run)
    agent.cloud.apply(unknown)
    assert agent.says("echo still here") == "still here\n"
    items = agent.cloud.list().items
    assert not [item for item in items if isinstance(item, TaskSeen) and item.run_id == unknown.run.id]
    assert [item.uid for item in items if isinstance(item, TaskSeen) and item.run_id == plan.run.id] == [
        agent.ended(plan.run).uid
    ]


@pytest.mark.as_user
def test_logs_stay_until_the_purge(agent: Agent) -> None:
    run = agent.apply(role("echo keep me"))
    agent.ended(run)
    with pytest.raises(CloudError, match="delete it first"):
        agent.cloud.purge(run)
    agent.cloud.delete(run)
    agent.gone(run)
    assert agent.output(run) == "keep me\n"
    assert sorted(os.listdir(agent.task_folder(run))) == ["log", "log.times"]
    agent.cloud.purge(run)
    agent.cloud.purge(run)
    assert agent.output(run) == ""
    assert run.id not in {item.run_id for item in agent.cloud.list().items}
    agent.cloud.delete(run)
    agent.until(lambda: agent.seen.count(RunGone(run.id)) == 2)


def test_a_watch_goes_on_where_it_was_and_expires(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent("--journal-items", "20")
    start = agent.cloud.list().position
    run = agent.apply(role("exit 0"))
    agent.ended(run)
    first = next_batch(agent, start)
    assert [item.phase for item in first.items if isinstance(item, TaskSeen)] == ["Pending", "Running", "Succeeded"]
    assert next_batch(agent, first.position).items == ()
    for _ in range(14):
        agent.ended(agent.apply(role("exit 0")))
    for position in (start, "", "other.3", agent.position + "9"):
        with pytest.raises(WatchExpired):
            next_batch(agent, position)
    assert len([item for item in agent.cloud.list().items if isinstance(item, TaskSeen)]) == 15


def test_addresses_are_distinct_and_stay(agent: Agent) -> None:
    one, other = agent.plan().run, agent.plan().run
    first = agent.cloud.reserve(one, {"worker": 2, "ps": 1})
    second = agent.cloud.reserve(other, {"worker": 2, "ps": 1})
    assert set(first) == {("worker", 0), ("worker", 1), ("ps", 0)}
    assert len(set(first.values()) | set(second.values())) == 6
    assert all(20_000 <= int(address.removeprefix("127.0.0.1:")) < 30_000 for address in first.values())
    assert agent.cloud.reserve(one, {"worker": 2, "ps": 1}) == first
    agent.cloud.delete(one)
    agent.gone(one)
    with pytest.raises(CloudRefused):
        agent.cloud.reserve(one, {"worker": 1})


def test_what_can_never_run_here_is_refused(agent: Agent) -> None:
    import dataclasses

    plan = agent.plan(role("true"))
    for image, words in (
        (ImageRef("tf", "tf:1", "", ""), "Image tf has no environment on this machine; it can run on Kubernetes only."),
        (ImageRef("tf", "", "/nowhere", ""), "The environment of image tf does not exist on this machine: /nowhere"),
        (ImageRef("tf", "", agent.home.environment, "/nowhere"), "The program folder of image tf does not exist"),
    ):
        with pytest.raises(CloudRefused, match=words):
            agent.cloud.apply(dataclasses.replace(plan, image=image))
    with pytest.raises(CloudRefused, match="needs 9 GPUs at once and this machine has 8 GPUs"):
        agent.cloud.apply(agent.plan(role("true", gpus=3, count=3)))


def _commands() -> list[str]:
    lines = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    lines.append(file.read().replace(b"\0", b" ").decode().strip())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return lines
