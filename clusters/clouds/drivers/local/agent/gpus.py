"""The GPUs of this machine: those that NVML finds, or simulated ones."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from clusters.clouds.drivers.local.agent.scheduler import Slot
from clusters.clouds.drivers.local.task import sandbox

log = logging.getLogger(__name__)

SIMULATED = "simulated"


@dataclass(frozen=True)
class Gpus:
    """`names`: the values of CUDA_VISIBLE_DEVICES by slot id. They are UUIDs for real GPUs, because a task only has the device
    files of its own GPUs and numbers them anew."""

    slots: tuple[Slot, ...]
    names: dict[str, str]
    devices: dict[str, str]
    simulated: bool

    def binds(self, ids: tuple[str, ...]) -> list[sandbox.Bind]:
        """Returns the device files for a task that holds `ids`, and sysfs folders with the GPUs' topology for its libraries."""
        if self.simulated or not ids:
            return []
        shared = [path for path in sorted(Path("/dev").glob("nvidia*")) if not path.name[6:].isdecimal()]
        paths = [str(path) for path in shared] + [self.devices[gpu] for gpu in ids]
        binds: list[sandbox.Bind] = [{"source": path, "target": path} for path in paths]
        for place, names in (("/sys/devices", "pci*"), ("/sys/bus", "pci"), ("/sys/module", "nvidia*")):
            found = [str(path) for path in sorted(Path(place).glob(names))]
            binds += [{"source": path, "target": path, "read_only": True} for path in found]
        return binds


def find(simulated: int, *, ignore_real: bool = False) -> Gpus:
    """Returns all real GPUs; without any (or with `ignore_real`), `simulated` slots."""
    real = None if ignore_real else _nvml()
    if real is not None:
        return real
    slots = tuple(Slot(str(index), SIMULATED, simulated=True) for index in range(simulated))
    return Gpus(slots, {slot.id: slot.id for slot in slots}, {}, simulated=True)


def _nvml() -> Gpus | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.info("No GPU found: %s", error)
        return None
    try:
        slots, names, devices = [], {}, {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            slots.append(Slot(str(index), _text(pynvml.nvmlDeviceGetName(handle)).removeprefix("NVIDIA ")))
            names[str(index)] = _text(pynvml.nvmlDeviceGetUUID(handle))
            devices[str(index)] = f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(handle)}"
        return Gpus(tuple(slots), names, devices, simulated=False) if slots else None
    except pynvml.NVMLError as error:
        log.warning("The GPUs cannot be listed: %s", error)
        return None
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
