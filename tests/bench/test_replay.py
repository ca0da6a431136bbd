"""The replay of `bench/admission/replay.py`, small: what holds over many decisions in a row, and the cloud that it simulates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.admission import replay, virtual
from bench.admission.traces import Job, Terms, Trace, eights, from_folder, generated, mixed
from bench.admission.virtual import Cloud
from clusters.admission import taking
from clusters.admission.packing import asking
from clusters.runs.placing import known, rights, room


def job(at, seconds, gpus, appcode="one", priority="normal"):
    return Job(at, seconds, seconds, (asking("w", 1, gpus),), appcode, priority)


def test_the_simulated_cloud_has_the_times_of_the_product():
    assert {level: room.dt.timedelta(seconds=each) for level, each in virtual.PROTECTED.items()} == rights.PROTECTED
    assert (known.MOST_WAITING, taking.MOST_LOST) == (virtual.MOST_WAITING, virtual.MOST_LOST)
    assert (room.TO_BEGIN.seconds, known.TO_END.seconds) == (virtual.TO_BEGIN, virtual.TO_END)


@pytest.mark.parametrize("nodes", [eights(10), mixed(40)], ids=["equal", "mixed"])
def test_promised_starts_hold_and_never_move_later_unless_somebody_with_a_higher_right_comes(nodes):
    """Over many decisions in a row. One appcode and one class, so that nobody does."""
    trace = generated("", 2, 150, nodes, 1.2)
    jobs = [replace(each, appcode="one", priority_class="normal") for each in trace.jobs]
    seen = Cloud(replace(trace, jobs=jobs, terms={"one": Terms("line", 10**6, 10**6)})).replay()
    assert (seen.delayed, seen.slipped, seen.outranked) == ([], 0, 0)
    assert seen.kept == seen.promises > 0


def test_with_shares_and_classes_every_run_ends_once_within_limits_and_a_preview_says_what_becomes_of_it():
    trace = generated("", 1, 150, eights(10), 1.2)
    cloud = Cloud(trace, saves=(600, 1800))
    cloud.watch = watcher = replay.Watcher(cloud)
    seen = cloud.replay()
    assert replay._forgotten(trace, seen) == seen.over == replay._false_never(trace, seen) == watcher.differ == 0
    assert watcher.compared > 50
    assert seen.takes > 0
    assert not seen.delayed


def test_a_run_that_is_taken_back_waits_in_its_old_order_and_goes_on_from_its_checkpoint():
    """The spare run does 7,200 s of work, is taken after 3,600 of which it saved 3,000, and starts before the younger one."""
    codes = {"one": Terms("a", 8, 8), "other": Terms("b", 0, 8)}
    jobs = [job(0, 7200, 8, "other", "spare"), job(60, 7200, 8, "other", "spare"), job(3600, 60, 8)]
    seen = Cloud(Trace("", eights(1), codes, jobs), saves=(1000, 1000)).replay()
    assert (seen.takes, seen.lost) == (1, 8 * 600)
    back = 3600 + virtual.GRACE
    begins = 3660 + 60  # The pass after the taker has ended.
    assert seen.waits == {2: 60, 0: begins - back, 1: begins + 4200 - 60}


def test_traces_are_read_from_their_files(tmp_path):
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,96000,393216,8,G2\n")
    (tmp_path / "openb_pod_list_default.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,4000,16384,2,1000,G2|P100,LS,Running,10,500,100\np1,4000,16384,1,320,,BE,Pending,20,30,\n"
    )
    (tmp_path / "seed=0").mkdir()
    (tmp_path / "seed=0" / "0e4a51.trace").write_text("LM\tpython main.py\t--steps\t1\t100\t5.0\t16\n" * 2)
    (tmp_path / "philly_runtime.csv").write_text("runtime\n131.0\n")
    openb, gavel, philly = from_folder(tmp_path, 1, 3, eights(4))
    [pod] = openb.jobs
    assert (pod.tasks[0].gpus, pod.tasks[0].gpu_model, pod.seconds, openb.gpus) == (2, "G2", 400, 8)
    assert [(each.gpus, each.seconds, each.appcode) for each in gavel.jobs] == [(16, 131, "seed=0-0e4a51")] * 2
    assert [each.seconds for each in philly.jobs] == [131] * 3


def test_no_schedule_uses_more_than_the_bound_that_the_bench_tells():
    """Two runs that fill the cloud one after the other, and one that needs a node which is large enough."""
    codes = {"one": Terms("a", 8, 8)}
    both = Trace("", eights(1), codes, [job(0, 600, 8), job(0, 600, 8), job(900, 60, 8)])
    assert replay.most_use(both) == 1.0
    late = Trace("", eights(1), codes, [job(0, 60, 8), job(600, 60, 8)])
    assert replay.most_use(late) == pytest.approx(0.1)
    large = Trace("", mixed(4), codes, [job(0, 600, 8), job(0, 600, 8), job(600, 60, 1)])
    assert replay.most_use(large) == pytest.approx(8 / 14), "of 8, 4, 1 and 1 GPUs one node holds them"
