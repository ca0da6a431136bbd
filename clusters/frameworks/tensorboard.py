"""TensorBoard over the outputs of runs, which are mounted read-only. Source: tensorboard 2.21.

If its image has TensorFlow, TensorBoard would import it, which costs seconds and half a gigabyte. It can read event files without
it, and does so if a module `tensorboard.compat.notf` exists (tensorboard/compat/__init__.py). Its fast loader does not follow
files that several programs write into one folder, hence `load_fast` and `reload_multifile`.

It cannot run users' programs, so appcode members who may only view are admitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from clusters.frameworks.base import (
    LOOPBACK,
    Addresses,
    Completion,
    Endpoint,
    Framework,
    Launch,
    Resources,
    Role,
    Spec,
    prepared,
)
from portal.manifests import field_error

# Each run has a folder <cluster>/<number> below it, which TensorBoard shows as the run's name.
RUNS = "/elearn/runs"
PORT = 6006
START = (
    "import sys; sys.modules['tensorboard.compat.notf'] = sys; "
    "from tensorboard.main import run_main; sys.argv[0] = 'tensorboard'; run_main()"
)


class TensorBoard(Framework):
    name = "tensorboard"
    title = "TensorBoard"
    is_application = True
    shows_runs = "events"
    # Idle: no request let in by the gateway, because TensorBoard only works on request.
    idle_signal = "use"
    idle_after = 1800
    modes = ("service",)
    needs_command = False
    roles = (Role("board", "TensorBoard", least=1, most=1, kept_alive=True),)
    completions = (Completion("board", "board", "when it is stopped"),)
    reserved_env: ClassVar[frozenset[str]] = frozenset()

    def validate(self, spec: Spec) -> None:
        super().validate(spec)
        if not spec.runs:
            raise field_error("Name the runs that it shows, as CLUSTER/NUMBER, for example train/3.", "runs")

    def endpoints(self, spec: Spec, role: str) -> Sequence[Endpoint]:
        return (Endpoint("tensorboard", PORT, "/data/environment"), *spec.endpoints(role))

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        flags = {
            "logdir": RUNS,
            "host": LOOPBACK,
            "port": str(PORT),
            "load_fast": "false",
            "reload_multifile": "true",
            "reload_interval": "5",
            "window_title": f"TensorBoard: {', '.join(spec.runs)}",
        }
        argv = ("python", "-c", START, *(f"--{name}={value}" for name, value in flags.items()))
        return Launch(prepared(spec.command, argv))
