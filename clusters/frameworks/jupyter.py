"""JupyterLab: one notebook server, opened in a browser. Source: jupyter_server 2.21 and JupyterLab 4.6.

The gateway asks who comes and strips what it was told by it, so the server inside has neither a password nor a token of its
own. Nobody else reaches it: on one machine its network is its own, on Kubernetes a NetworkPolicy lets only the gateway through.
The gateway also compares Origin with the address of a request, which is what `_xsrf` is for: a program with a token has no such
cookie. Who has a notebook open runs cells on the server (jupyter-server-nbmodel), so that they go on when the browser is
closed.

Whether it works is said by the server itself (jupyter_start.py), as only it knows: a cell runs, though silently; a program runs
in a terminal; its processes compute. That a page is open is no work.

What people install goes into a layer on their home (layer.py), which kernels and terminals use. JupyterLab itself starts from the
image, so that no package that they install keeps them out. Plugins that an administrator offers are seen by JupyterLab alone,
behind the image's own packages: they replace none of them."""

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
from clusters.frameworks.programs import text, whole
from portal.manifests import field_error

HOME = "/elearn/home"
# The link in it to the outputs of runs that it shows (jupyter_start.py).
RUNS = "elearn-runs"
# Any image with JupyterLab will do: what the server needs to know of the portal comes with its command.
START, NOTICE = whole("jupyter_start.py"), text("jupyter_notice.js")
PORT = 8888


class Jupyter(Framework):
    name = "jupyter"
    title = "Jupyter"
    is_application = True
    is_shell = True
    has_layer = True
    needs_home = True
    has_plugins = True
    shows_runs = "files"
    modes = ("service",)
    idle_signal = "work"
    idle_after = 7200
    needs_command = False
    roles = (Role("notebook", "Notebook", least=1, most=1, kept_alive=True),)
    completions = (Completion("notebook", "notebook", "when it is disabled"),)
    reserved_env: ClassVar[frozenset[str]] = frozenset(
        {"HOME", "JUPYTER_RUNTIME_DIR", "JUPYTER_TOKEN", "PORTAL_LAYER", "SHELL"}
    )

    def validate(self, spec: Spec) -> None:
        super().validate(spec)
        if not spec.home:
            raise field_error("Notebooks need a place that outlives them; name a volume, NFS or a folder.", "home")

    def endpoints(self, spec: Spec, role: str) -> Sequence[Endpoint]:
        return (Endpoint("notebook", PORT, "/api", "/api/portal/activity"), *spec.endpoints(role))

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        flags = {
            "ServerApp.ip": LOOPBACK,
            "ServerApp.port": str(PORT),
            "ServerApp.port_retries": "0",
            "ServerApp.root_dir": HOME,
            "ServerApp.allow_root": "True",
            "ServerApp.allow_remote_access": "True",
            "ServerApp.disable_check_xsrf": "True",
            "ServerApp.open_browser": "False",
            # What several people type at one time; the notebook itself is saved in its file.
            "SQLiteYStore.db_path": "/tmp/jupyter-ystore.db",  # noqa: S108  the task's own
            "LabApp.extension_manager": "readonly",
        }
        server = ("python", "-c", START, NOTICE, *(f"--{name}={value}" for name, value in flags.items()))
        env = {
            "HOME": HOME,
            "JUPYTER_RUNTIME_DIR": "/tmp/jupyter",  # noqa: S108  the task's own
            "SHELL": "/bin/bash",
            "PORTAL_LAYER": f"{HOME}/.environments/{layer_name(spec)}",
        }
        return Launch(prepared(spec.command, server), env, from_image=True)


def layer_name(spec: Spec) -> str:
    """Of what people install: over another image or environment they begin anew, and find the old one when they come back."""
    return "+".join([spec.image, *([spec.environment.replace(":", "-")] if spec.environment else [])])
