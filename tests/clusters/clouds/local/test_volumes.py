"""A volume of this machine is a folder that outlives the runs that mount it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters.clouds.drivers.base import CloudError, Mount, VolumeRef, VolumeSource
from tests.clusters.clouds.local.agents import Agent, role

VOLUME = VolumeRef(7, "ops", "ops-demo", "home")


@pytest.mark.as_user
def test_what_lies_in_a_volume_is_there_for_the_next_run_and_goes_when_nobody_has_it(agent: Agent) -> None:
    def run(command: str, folder: str = ""):
        source = VolumeSource(VOLUME, "", "1Gi", "ReadWriteOnce", folder)
        plan = replace(agent.plan(role(command)), mounts=(Mount("/elearn/home", False, source),))
        agent.cloud.apply(plan)
        return plan.run

    first = run("echo kept > /elearn/home/file; ln -s /etc/passwd /elearn/home/link; echo written; sleep 600")
    agent.until_output(first, "written\n")
    with pytest.raises(CloudError, match="has the volume mounted"):
        agent.cloud.delete_volume(VOLUME)
    agent.cloud.delete(first)
    agent.gone(first)
    second = run("cat /elearn/home/file; ls /elearn/home")
    agent.until_output(second, "kept\nfile\nlink\n")
    agent.cloud.delete(second)
    agent.gone(second)
    place = agent.folder / "cloud" / "volumes" / str(VOLUME.id)
    assert place.stat().st_mode & 0o077 == 0
    agent.cloud.delete_volume(VOLUME)
    agent.cloud.delete_volume(VOLUME)
    assert not place.exists()
