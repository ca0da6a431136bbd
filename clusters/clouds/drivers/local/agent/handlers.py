"""Handlers of the portal's requests: each answers one kind of request at once.

Accepted requests are on disk before the answer; everything slow happens later, in the turns of the node.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace

from clusters.clouds.drivers.base import (
    Batch,
    Capacity,
    CloudError,
    CloudRefused,
    CodeCommit,
    LocalSource,
    Measurements,
    Plan,
    RunGone,
    RunRef,
    S3Source,
    Samples,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.drivers.base import Node as NodeSeen
from clusters.clouds.drivers.local import protocol
from clusters.clouds.drivers.local.agent import disks, gpu_meter, scheduler
from clusters.clouds.drivers.local.agent import samples as sampling
from clusters.clouds.drivers.local.agent.node import Node
from clusters.clouds.drivers.local.agent.runs import Run, ask_of
from clusters.clouds.drivers.local.data.files import sync_folder, write_json
from clusters.clouds.drivers.local.network import network
from clusters.clouds.drivers.local.task import cgroups, sandbox


def apply(node: Node, plan: Plan) -> None:
    """See `Cloud.apply`."""
    number = plan.run.id
    if number in node.purged or not _may_live(node, plan.run):
        return
    if number in node.runs:
        known = node.runs[number].ref
        if replace(known, life=plan.run.life) != plan.run:
            raise CloudRefused(f"Run {number} is {known.cluster} here: this folder belongs to another portal.")
        if known.life < plan.run.life:
            raise CloudError("What was left of it is still being ended.")
        return
    if node.leaving:
        raise CloudError("The node agent is stopping.")
    _check(node, plan)
    folder = node.run_folder(number)
    node.known["order"] += 1
    write_json(node.folder / "cloud.json", node.known)
    data = {"order": node.known["order"], "plan": plan}
    handle = os.open(folder / "plan.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as file:
        file.write(protocol.dumps(data))
        file.flush()
        os.fsync(handle)
    os.rename(folder / "plan.new", folder / "plan.json")
    sync_folder(folder)
    sync_folder(folder.parent)
    run = node.runs[number] = Run(node, folder)
    node.wake(run.ref.id)


def _may_live(node: Node, ref: RunRef) -> bool:
    """Whether a run is not gone. One that begins anew leaves nothing of its earlier life."""
    if ref.id in node.gone:
        if _gone(node, ref.id).life >= ref.life:
            return False
        node.discard(node.folder / "runs" / str(ref.id))
        node.discard_written(ref.id)
        node.gone.discard(ref.id)
    return True


def _gone(node: Node, number: int) -> RunGone:
    return next((item for item in node.remains(number) if isinstance(item, RunGone)), RunGone(number))


def _check(node: Node, plan: Plan) -> None:
    """Raises CloudRefused for what can never run here."""
    if node.cannot_isolate:
        node.probe()
    if node.cannot_isolate:
        raise CloudRefused(node.cannot_isolate)
    image = plan.image
    if not image.environment:
        raise CloudRefused(f"Image {image.name} has no environment on this machine; it can run on Kubernetes only.")
    for what, path in (("environment", image.environment), ("program folder", image.program)):
        if path and not os.path.isdir(path):
            raise CloudRefused(f"The {what} of image {image.name} does not exist on this machine: {path}")
    for role in plan.roles:
        if role.endpoints and role.count > 1:
            raise CloudRefused(
                f"Endpoint {role.endpoints[0].name} has one port, and the {role.count} tasks of its role share a network on this "
                "machine; give the role one task."
            )
    _check_mounts(node, plan)
    refusal = scheduler.refusal(node.gpus.slots, node.room, ask_of(plan))
    if refusal:
        raise CloudRefused(refusal)


def _check_mounts(node: Node, plan: Plan) -> None:
    if isinstance(plan.code, CodeCommit) and not node.git:
        raise CloudRefused("Code in Git needs the package dulwich, which is not installed on this machine.")
    for mount in plan.mounts:
        if not os.path.isabs(mount.mount_path) or os.path.normpath(mount.mount_path) != mount.mount_path:
            raise CloudRefused(f"{mount.mount_path} is not a path at which data can be mounted.")
        if isinstance(mount.source, S3Source) and not node.rclone:
            raise CloudRefused("Data in S3 needs the program rclone, which is not installed on this machine.")
        if mount.stream_key and node.shares_network:
            raise CloudRefused(
                f"Input cannot be streamed here, where the networks of runs are not apart: {node.shares_network}"
            )
        if isinstance(mount.source, LocalSource):
            _check_local(mount.source)


def _check_local(source: LocalSource) -> None:
    root, path = os.path.realpath(source.root), os.path.realpath(source.path)
    if not sandbox.inside(path, root):
        raise CloudRefused(f"{source.path} does not lie in {source.root}, which an administrator allowed.")
    if not os.path.isdir(root):
        raise CloudRefused(f"The folder {source.root} does not exist on this machine.")


def delete(node: Node, ref: RunRef) -> None:
    """See `Cloud.delete`."""
    if ref.id in node.runs:
        run = node.runs[ref.id]
        if run.ref.life <= ref.life:
            run.delete()
            node.wake(run.ref.id)
        return
    if ref.id not in node.purged and _may_live(node, ref):
        folder = node.run_folder(ref.id)
        gone = RunGone(ref.id, life=ref.life)
        remains = {"ref": dict(vars(ref)), "seen": [{"kind": "gone", **vars(gone)}]}
        write_json(folder / "gone.json", remains, durable=True)
        node.gone.add(ref.id)
        node.addresses.pop(ref.id, None)
        (folder / "addresses.json").unlink(missing_ok=True)
    else:
        gone = _gone(node, ref.id)
    node.news.append(gone)
    node.flush()


def purge(node: Node, ref: RunRef) -> None:
    """See `Cloud.purge`."""
    if ref.id in node.runs:
        raise CloudError("The run is still there; delete it first.")
    if ref.id in node.purged:
        return
    with open(node.folder / "purged", "a") as file:
        file.write(f"{ref.id}\n")
        file.flush()
        os.fsync(file.fileno())
    node.purged.add(ref.id)
    node.gone.discard(ref.id)
    node.addresses.pop(ref.id, None)
    node.discard(node.folder / "runs" / str(ref.id))
    node.discard_written(ref.id)


def delete_volume(node: Node, volume: VolumeRef) -> None:
    """See `KeepsVolumes.delete_volume`. Raises CloudError while a run has the volume, for a retry."""
    for run in node.runs.values():
        if any(isinstance(mount.source, VolumeSource) and mount.source.volume == volume for mount in run.plan.mounts):
            raise CloudError(f"{run.ref.cluster} has the volume mounted; it is removed afterwards.")
    node.remove_volume(volume.id)


def reserve(node: Node, ref: RunRef, counts: Mapping[str, int]) -> dict[str, int]:
    """See `Cloud.reserve`. Returns ports by `role-index`."""
    if ref.id in node.purged or not _may_live(node, ref):
        raise CloudRefused("The run was deleted.")
    have = dict(node.addresses.get(ref.id, {}))
    missing = [
        f"{role}-{index}" for role, count in counts.items() for index in range(count) if f"{role}-{index}" not in have
    ]
    if missing:
        have.update(zip(missing, _free_ports(node, len(missing)), strict=True))
        write_json(node.run_folder(ref.id) / "addresses.json", have, durable=True)
        node.addresses[ref.id] = have
    return {f"{role}-{index}": have[f"{role}-{index}"] for role, count in counts.items() for index in range(count)}


def _free_ports(node: Node, count: int) -> list[int]:
    """Returns ports without listener that no run holds. Cycles through the range, so that none is reused soon."""
    held = {port for ports in node.addresses.values() for port in ports.values()}
    start = node.known["port"]
    found: list[int] = []
    for step in range(len(node.ports)):
        port = node.ports[(start - node.ports.start + step) % len(node.ports)]
        if port not in held and _bindable(port):
            found.append(port)
            if len(found) == count:
                node.known["port"] = port + 1
                return found
    raise CloudError(f"No {count} free ports between {node.ports.start} and {node.ports.stop - 1}.")


def everything(node: Node) -> Batch:
    """See `Cloud.list`."""
    if node.turn_due:
        node.turn()
    items = [item for number in sorted(node.gone) for item in node.remains(number)]
    for run in node.runs.values():
        items += run.seen()
    return Batch(node.journal.position, tuple(items))


def capacity(node: Node) -> Capacity:
    """See `Cloud.capacity`."""
    free = node.free_room
    models = sorted({slot.model for slot in node.gpus.slots})
    notes = (
        network.note(node),
        "" if node.cgroups else cgroups.CPU_NOT_SHARED,
        f"{disks.NOT_HELD} {network.sharing(node)}" if node.no_disks and not node.shares_network else "",
    )
    seen = NodeSeen(
        node.name,
        ", ".join(models),
        len(node.gpus.slots),
        len(node.free),
        node.room.cpu_milli,
        node.room.memory_mb,
        node.gpus.simulated,
        node.cannot_isolate or " ".join(filter(None, notes)),
        cpu_milli_free=free.cpu_milli,
        memory_mb_free=free.memory_mb,
    )
    return Capacity((seen,))


def gpu_use(node: Node, since: str) -> Measurements:
    """See `Cloud.gpu_use`."""
    return Measurements("", note=gpu_meter.SIMULATED) if node.gpus.simulated else node.meter.since(since)


async def samples(node: Node) -> Samples:
    """See `SamplesTasks.samples`."""
    now = time.time()
    living = node.living(now)
    # A thread, because /proc of a busy machine may take a while.
    found = await asyncio.get_running_loop().run_in_executor(None, sampling.look, living, now)
    notes = {"network": sampling.SHARED_NETWORK} | ({"gpu": gpu_meter.SIMULATED} if node.gpus.simulated else {})
    return Samples(tuple(found), notes)


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
