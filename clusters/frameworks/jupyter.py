"""JupyterLab: one notebook server, opened in a browser. Source: jupyter_server 2.21 and JupyterLab 4.6.

The gateway authenticates callers and strips their credentials, so the server has neither a password nor a token. Nothing else
can reach it: on one machine its network is private, on Kubernetes a NetworkPolicy admits only the gateway. The gateway also
compares Origin with the address of each request, which replaces `_xsrf`: a program with a token has no such cookie. Cells run on
the server (jupyter-server-nbmodel), so they continue when the browser is closed.

The server itself reports whether it works (inside/jupyter_start.py), because only it knows: a cell runs, even silently; a program
runs in a terminal; its processes use CPU. An open page is not work.

Packages that people install go into a layer on their home (inside/layer.py), which kernels and terminals use. JupyterLab starts
from the image, so no installed package can lock people out. Plugins offered by an administrator are visible to JupyterLab alone,
after the image's own packages on the path: they replace none of them."""

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
from clusters.frameworks.programs import text
from portal.manifests import field_error

HOME = "/elearn/home"
# The link in HOME to the outputs of runs that it shows (inside/jupyter_start.py).
RUNS = "elearn-runs"
# Works with any image that has JupyterLab: the command carries all portal-specific code.
START, NOTICE = text("jupyter_start.py"), text("jupyter_notice.js")
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
    completions = (Completion("notebook", "notebook", "when it is stopped"),)
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
            # Concurrent edits by several people; the notebook itself is saved in its file.
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
    """Returns the name of the layer for this image and environment: another combination starts with an empty layer, and
    returning to this one finds it again."""
    return "+".join([spec.image, *([spec.environment.replace(":", "-")] if spec.environment else [])])
