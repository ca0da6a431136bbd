"""A task sees its own programs and data, and nothing of others."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from clusters.clouds.drivers.base import CloudRefused, LocalSource, Mount
from clusters.clouds.drivers.local.agent import uids
from clusters.clouds.drivers.local.task import sandbox
from tests.clusters.clouds.local.agents import Agent, Agents, Home, role
from tests.clusters.clouds.local.test_exec import heard

pytestmark = pytest.mark.as_user


@pytest.fixture
def allowed(agent: Agent) -> Path:
    """A folder that an administrator has allowed, owned by the agent's user."""
    folder = agent.folder / f"allowed-{uuid.uuid4().hex}"
    (folder / "set").mkdir(parents=True)
    (folder / "set" / "x.txt").write_text("one\n")
    for path in (folder, folder / "set", folder / "set" / "x.txt"):
        if agent.home.uid is not None:
            os.chown(path, agent.home.uid, agent.home.uid)
    return folder


def local(folder: Path, path: str, *, read_only: bool) -> Mount:
    target = "/elearn/input" if read_only else "/elearn/output"
    return Mount(target, read_only, LocalSource(str(folder), str(folder / path)))


def test_nothing_of_the_host_is_there(agent: Agent) -> None:
    (agent.folder / "cloud" / "secret").write_text("secret")
    says = agent.says(
        f"ls -A /root /home /elearn /elearn/input /tmp /run; ls {agent.folder} || echo no such folder; ls / "
    )
    assert "no such folder" in says
    assert "secret" not in says
    for name in ("mnt", "opt", "srv", "boot", "media"):
        assert name not in says.split()


def test_of_the_settings_of_the_machine_programs_see_what_they_need(agent: Agent) -> None:
    script = """
    ls /etc /sys /sys/*; echo ---; getent passwd root && getent services https && getent hosts localhost
    python -c 'import os; print(os.cpu_count(), os.sysconf("SC_NPROCESSORS_CONF"))'; ls -d /etc/ssl/certs/.
    """
    listed, found = agent.says(script).split("---\n")
    assert not {"shadow", "machine-id", "fstab", "ssh", "sudoers", "hostname", "net", "block", "fs"} & set(
        listed.split()
    )
    assert found.startswith("root:x:0:0")
    lines = found.splitlines()
    assert lines[-2:] == [f"{os.cpu_count()} {os.sysconf('SC_NPROCESSORS_CONF')}", "/etc/ssl/certs/."]
    assert any(line.startswith("https") for line in lines)


# Prints what it can read of the hidden files, its cgroups and host name, and whether monitoring programs find what they need.
WHERE = """
import os, socket
def read(path): return open(path).read()
hidden = [name for name in %r if os.path.exists("/proc/" + name)]
print([name for name in hidden if (os.listdir if os.path.isdir("/proc/" + name) else read)("/proc/" + name)])
print({line.rstrip().rpartition(":")[2] for line in open("/proc/self/cgroup")})
print(socket.gethostname(), os.environ["HOSTNAME"], socket.gethostbyname(socket.gethostname()))
print(all(read(f"/proc/{name}") for name in ("cpuinfo", "meminfo", "stat", "loadavg", "self/mountinfo")))
"""


def test_the_kernel_tells_a_task_and_a_command_in_it_nothing_of_the_machine(agent: Agent) -> None:
    where = ["python", "-c", WHERE % (sandbox.HIDDEN,)]
    run = agent.apply(replace(role(""), argv=("bash", "-c", '"$@"; exec sleep 600', "bash", *where)))
    name = f"ops-demo-demo-{run.number}-{run.id}-worker-0"  # like a pod's
    expected = f"[]\n{{'/'}}\n{name} {name} 127.0.0.1\nTrue\n"
    assert agent.until_output(run, "True\n") == expected
    agent.running(run)
    code, output, errors = heard(agent.cloud.exec(run, "worker", 0, where))
    assert (code, output.decode()) == (0, expected), errors


def test_a_task_is_nobody(agent: Agent) -> None:
    script = "id -u; grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -d '[:blank:]'; ls /etc/shadow || true"
    says = agent.says(script)
    uid, *rest = says.split()
    assert int(uid) != 0
    assert rest[:4] == ["CapPrm:" + "0" * 16, "CapEff:" + "0" * 16, "CapBnd:" + "0" * 16, "NoNewPrivs:1"]
    assert "No such file" in says
    if agent.home.uid is None and os.geteuid() == 0:
        assert int(uid) >= 2_100_000_000


HERE = "         0          0 4294967295\n"


@pytest.mark.parametrize(
    ("subordinate", "uid_map", "first", "owner"),
    [
        ("", HERE, 2_100_000_000, ""),
        ("a:100000:65536\nb:165536:65536\nroot:1000000:1000000000\n", HERE, 2_100_000_000, ""),
        ("a:2000000000:100000001", HERE, 700_000_000, ""),
        ("a:2100099999:1\nb:1:2\nodd\n", HERE, 700_000_000, ""),
        ("a:2100100000:1\nb:2099999995:1\n", HERE, 2_100_000_000, ""),
        ("a:1:3000000000\n", HERE, 2_100_000_000, "a"),
        ("a:100000:65536\n", "0 1000000 1000000000\n", 700_000_000, ""),
        ("", "0 100000 65536\n", 200_000, ""),
    ],
)
def test_uids_of_tasks_are_nobody_elses(subordinate: str, uid_map: str, first: int, owner: str) -> None:
    assert uids.choose(subordinate, uid_map) == first
    assert uids.owner(first - uids.BEFORE, uids.BEFORE + uids.APPCODES, subordinate) == owner


def test_tasks_of_one_appcode_keep_their_uid_and_others_have_another(agent: Agent) -> None:
    import dataclasses

    if agent.home.uid is not None or os.geteuid() != 0:
        pytest.skip("An ordinary user has one uid.")
    mine, again, other = (agent.plan(role("id -u")) for _ in range(3))
    other = dataclasses.replace(other, run=dataclasses.replace(other.run, appcode="flight-demo"))
    had = []
    for plan in (mine, other, again):
        agent.cloud.apply(plan)
        agent.ended(plan.run)
        had.append(agent.output(plan.run))
    assert had[0] == had[2] != had[1]


def test_other_tasks_and_the_init_cannot_be_seen_or_touched(agent: Agent) -> None:
    agent.running(agent.apply(role("sleep 9999")))
    says = agent.says("grep -l . /proc/[0-9]*/comm | wc -l; kill -9 1; cat /proc/1/environ | wc -c; echo still here")
    assert int(says.split()[0]) <= 4
    assert says.endswith("still here\n")


def test_only_tmp_output_and_shm_can_be_written(agent: Agent) -> None:
    script = """
    for folder in /tmp /var/tmp /dev/shm /elearn/output; do echo x > $folder/x || exit 1; done
    for folder in / /etc /usr /elearn /elearn/input /sys /dev /proc $VIRTUAL_ENV; do
        if echo x > $folder/x-of-elearn; then exit 2; fi
    done
    echo > /dev/null; head -c 4 /dev/urandom | wc -c; echo $HOME $PWD $(command -v python)
    """
    says = agent.says(script)
    assert "4\n/tmp /elearn " + agent.home.environment + "/bin/python" in says


def test_the_program_folder_is_where_a_task_starts(agent: Agent) -> None:
    program = agent.folder / "program"
    program.mkdir(exist_ok=True)
    (program / "main.py").write_text("import sys; print('it works', sys.prefix)")
    says = agent.says("pwd; python main.py; touch new || echo read-only", program=str(program))
    assert says.startswith(f"/elearn/program\nit works {agent.home.environment}\n")
    assert says.endswith("read-only\n")


def test_a_local_folder_is_mounted_and_input_cannot_be_changed(agent: Agent, allowed: Path) -> None:
    mounts = (local(allowed, "set", read_only=True),)
    says = agent.says(
        "cat /elearn/input/x.txt; rm /elearn/input/x.txt; echo y > /elearn/input/y || echo kept", mounts=mounts
    )
    assert says.startswith("one\n")
    assert says.endswith("kept\n")
    assert os.listdir(allowed / "set") == ["x.txt"]


def test_a_local_folder_for_output_is_made_and_stays(agent: Agent, allowed: Path) -> None:
    run = agent.apply(role("echo two > /elearn/output/y.txt"), mounts=(local(allowed, "new/deep", read_only=False),))
    assert agent.ended(run).phase == "Succeeded"
    agent.cloud.delete(run)
    agent.gone(run)
    assert (allowed / "new" / "deep" / "y.txt").read_text() == "two\n"


def test_a_folder_that_a_task_may_not_write_is_told(agent: Agent, allowed: Path) -> None:
    (allowed / "set").chmod(0o555)
    run = agent.apply(role("true"), mounts=(local(allowed, "set", read_only=False),))
    end = agent.ended(run)
    assert end.phase == "Failed"
    assert "cannot be written by uid" in end.message


def test_a_path_that_leaves_the_allowed_folder_is_refused(agent: Agent, allowed: Path) -> None:
    (allowed / "link").symlink_to("/etc")
    (allowed / "fine").symlink_to(allowed / "set")
    for path in ("link", "link/ssl", "../..", "set/../../.."):
        with pytest.raises(CloudRefused, match="does not lie in"):
            agent.cloud.apply(agent.plan(role("true"), mounts=(local(allowed, path, read_only=True),)))
    assert agent.says("cat /elearn/input/x.txt", mounts=(local(allowed, "fine", read_only=True),)) == "one\n"


def test_a_missing_input_folder_is_told_and_waited_for(agent: Agent, allowed: Path) -> None:
    run = agent.apply(role("true"), mounts=(local(allowed, "later", read_only=True),))
    told = agent.storage(run, "failed")
    assert told.message == f"The folder {allowed}/later cannot be used: No such file or directory."
    task = agent.until(lambda: agent.task(run))
    assert (task.reason, task.message) == ("FetchingInput", told.message)
    agent.cloud.delete(run)
    agent.gone(run)


def test_two_runs_do_not_see_each_other(agent: Agent) -> None:
    # A unique name: the environment is visible on purpose, and may be in /tmp.
    name = f"mine-{uuid.uuid4().hex}"
    first = agent.apply(role(f"touch /elearn/output/{name} /tmp/{name}; echo there; sleep 600"))
    agent.until_output(first, "there")
    assert agent.says(f"find /elearn /tmp -name {name} | wc -l") == "0\n"


def test_what_a_task_makes_unreadable_is_removed_all_the_same(agent: Agent) -> None:
    script = "cd /elearn/output; mkdir -p /tmp/a/b c; touch /tmp/a/b/x; chmod 0 /tmp/a/b c; chmod 0 /tmp .; exit 0"
    run = agent.apply(role(script))
    agent.ended(run)
    agent.cloud.delete(run)
    agent.gone(run)
    assert sorted(os.listdir(agent.folder / "cloud" / "runs" / str(run.id))) == ["gone.json", "tasks"]
    agent.until_removed()


def test_a_kernel_that_forbids_namespaces_is_a_clear_refusal(home: Home, make_agent: Agents) -> None:
    if home.uid is None and os.geteuid() == 0:
        pytest.skip("Nothing is forbidden to root.")

    agent = make_agent(
        before="from clusters.clouds.drivers.local.task import sandbox\n"
        "sandbox.unshare()\n"
        "open('/proc/sys/user/max_user_namespaces', 'w').write('0')"
    )
    with pytest.raises(CloudRefused, match="does not let the portal isolate tasks"):
        agent.cloud.apply(agent.plan(role("true")))
    assert "sysctl user.max_user_namespaces" in agent.cloud.capacity().nodes[0].note
