"""Starts a notebook server, run as `python -c` inside the task: JupyterLab with the portal's users, which reports whether it
works and runs kernels in the layer of installed packages.

The gateway names the user in X-Portal-User, and nothing else can reach this server (see jupyter.py). Programs with the
application's token have no name. Only jupyter_server and JupyterLab are available here, because it runs in the user's
environment.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from clusters.frameworks.inside.hiding import hidden
from clusters.frameworks.inside.layer import lay_on, make_layer, packages_of

# jsonschema loads it to check IRIs, which no schema of JupyterLab has: half of the time that JupyterLab takes to load.
with hidden("rfc3987_syntax"):
    from jupyter_server.auth import IdentityProvider, User  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from jupyter_server.base.handlers import APIHandler  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from jupyter_server.services.kernels.kernelmanager import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        AsyncMappingKernelManager,
    )
    from jupyterlab.labapp import LabApp  # type: ignore[import-not-found, import-untyped, unused-ignore]

# Requests that open pages send to kernels by themselves, and requests that run no user code.
NO_WORK = {"kernel_info_request", "comm_info_request", "usage_request", "debug_request", "interrupt_request"}
TICKS = os.sysconf("SC_CLK_TCK")


class PortalIdentity(IdentityProvider):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """The gateway has admitted every caller; this only names the user."""

    auth_enabled = True

    def get_user(self, handler):  # type: ignore[no-untyped-def]
        name = handler.request.headers.get("X-Portal-User", "") or "program"
        return User(username=name, name=name, display_name=name, initials=name[:2].upper())


class Kernels(AsyncMappingKernelManager):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """Tracks the requests that each kernel is executing. Jupyter's own `execution_state` is that of the last message: “idle” in
    the middle of a cell as soon as another request (a memory display, a widget in a subshell) has been answered."""

    begun = 0

    def start_watching_activity(self, kernel_id: str) -> None:
        super().start_watching_activity(kernel_id)  # type: ignore[no-untyped-call, unused-ignore]
        kernel: Any = self._kernels[kernel_id]
        requests: set[str] = set()
        kernel.portal_requests = requests

        def note(parts: list[bytes]) -> None:
            header, parent, _, content = parts[parts.index(b"<IDS|MSG>") + 2 :][:4]
            if json.loads(header).get("msg_type") != "status":
                return
            state, request = json.loads(content)["execution_state"], json.loads(parent)
            if state == "starting":
                requests.clear()
            elif state == "busy" and request.get("msg_type") not in NO_WORK:
                requests.add(request.get("msg_id"))
                self.begun += 1
            elif state == "idle":
                requests.discard(request.get("msg_id"))

        kernel.portal_stream = kernel.connect_iopub()
        kernel.portal_stream.on_recv(note)

    def stop_watching_activity(self, kernel_id: str) -> None:
        super().stop_watching_activity(kernel_id)  # type: ignore[no-untyped-call, unused-ignore]
        stream = getattr(self._kernels[kernel_id], "portal_stream", None)
        if stream is not None and not stream.closed():
            stream.close()

    @property
    def at_work(self) -> int:
        return sum(bool(getattr(kernel, "portal_requests", None)) for kernel in self._kernels.values())


class Activity(APIHandler):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """Answers the portal's activity polls (clusters/clouds/drivers/base/activity.py in the portal)."""

    _track_activity = False

    def get(self) -> None:
        kernels: Any = self.kernel_manager
        program, seconds = processes()
        busy = "A cell runs." if kernels.at_work else f"{program} runs in a terminal." if program else ""
        said = {"busy": busy, "count": kernels.begun, "cpu_seconds": seconds, "network_bytes": network()}
        self.finish(json.dumps(said))


def processes() -> "tuple[str, float]":
    """Returns the name of a program started in a terminal (of Jupyter, the portal or tmux), "" if all show a prompt, and the CPU
    seconds of all processes of this task, ended ones included."""
    program, ticks = "", 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
        except OSError:  # it has ended
            continue
        fields = rest.split()
        ticks += sum(int(each) for each in fields[11:15])
        session, terminal = int(fields[3]), int(fields[4])
        # A process with a terminal that does not lead its session was started by the shell that does.
        if terminal and session != int(pid) and fields[0] != b"Z":
            program = name.decode(errors="replace")
    return program, ticks / TICKS


def network() -> int:
    """Returns the bytes exchanged with other machines. On one machine browsers arrive over loopback, which does not count."""
    with open("/proc/net/dev") as file:
        lines = [line.partition(":") for line in file if ":" in line]
    return sum(int(values.split()[0]) + int(values.split()[8]) for name, _, values in lines if name.strip() != "lo")


def show_notices(script: str) -> str:
    """Writes the script of the portal's notices as a JupyterLab extension; returns the folder of extensions."""
    folder = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "labextensions"
    (folder / "portal-notice" / "static").mkdir(parents=True, exist_ok=True)
    (folder / "portal-notice" / "static" / "notice.js").write_text(script)
    build = {"load": "static/notice.js", "extension": "./extension"}
    package = {"name": "portal-notice", "version": "1.0.0", "jupyterlab": {"extension": True, "_build": build}}
    (folder / "portal-notice" / "package.json").write_text(json.dumps(package))
    return str(folder)


def ask_nothing() -> None:
    """Disables JupyterLab's prompt about news, which would appear in the first minute of each notebook."""
    config = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "config"
    page = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (config / "labconfig").mkdir(parents=True, exist_ok=True)
    (config / "labconfig" / "page_config.json").write_text(json.dumps(page))
    os.environ["JUPYTER_CONFIG_PATH"] = str(config)


def show_runs() -> None:
    """Links the outputs of runs into the home, because the file browser shows only the home. Keeps a file of that name."""
    link = os.path.join(os.environ["HOME"], "elearn-runs")
    if os.path.isdir("/elearn/runs") and not os.path.lexists(link):
        try:
            os.symlink("/elearn/runs", link)
        except OSError as error:
            print(f"{link} cannot be made: {error}", file=sys.stderr)


def add_plugins() -> None:
    """Adds the chosen plugins for this server, not for kernels. They come after the image's own packages, so they replace
    nothing of JupyterLab. A server extension that fails to load is skipped and logged. Programs that extensions start, such as
    language servers, are found by `sys.executable -m` and last on PATH."""
    path = os.path.join(os.environ.get("PORTAL_ENVIRONMENT") or "/", "plugins")
    if not os.path.isdir(packages_of(path)):
        return
    sys.path.append(packages_of(path))
    for name, folder in (("JUPYTER_PATH", "share/jupyter"), ("JUPYTER_CONFIG_PATH", "etc/jupyter")):
        os.environ[name] = os.pathsep.join([*filter(None, [os.environ.get(name)]), os.path.join(path, folder)])
    sys.executable = os.path.join(path, "bin", "python")
    os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], os.path.join(path, "bin")])


def kernel(folder: Path, title: str, argv: "list[str]", env: "dict[str, str]") -> None:
    """Writes a kernel spec. `folder` is on the path that this server searches first."""
    folder.mkdir(parents=True, exist_ok=True)
    said = {"argv": argv, "display_name": title, "language": "python", "env": env, "metadata": {"debugger": True}}
    (folder / "kernel.json").write_text(json.dumps(said))


def offer_layer() -> None:
    """Makes the layer of installed packages in the home the default kernel, whatever the notebook names, and the terminals'
    Python. The image's own Python is a second kernel; it is the only one if the layer cannot be made."""
    layer, below = os.environ["PORTAL_LAYER"], os.environ.get("PORTAL_ENVIRONMENT", "")
    image = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    try:
        if not os.path.isdir(packages_of(layer)) or not os.path.exists(os.path.join(layer, "bin", "python")):
            make_layer(layer, [below] if below else [])
        else:
            lay_on(layer, [below] if below else [])
    except OSError as error:
        print(f"Packages cannot be installed: {error}", file=sys.stderr)
        return
    kernels = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "data" / "kernels"
    path = os.pathsep.join([os.path.join(layer, "bin"), os.environ["PATH"]])
    own = {"VIRTUAL_ENV": os.environ.get("VIRTUAL_ENV", ""), "PATH": os.environ["PATH"]}
    kernel(kernels / "image", "Python (plain image)", image, own)
    os.environ.update(PATH=path, VIRTUAL_ENV=layer)
    argv = [os.path.join(layer, "bin", "python"), *image[1:]]
    kernel(kernels / "python3", "Python (environment)", argv, {"VIRTUAL_ENV": layer, "PATH": path})
    os.environ["JUPYTER_PATH"] = os.pathsep.join([str(kernels.parent), *filter(None, [os.environ.get("JUPYTER_PATH")])])


if __name__ == "__main__":
    # Terminals start in the working directory.
    os.chdir(os.environ["HOME"])
    ask_nothing()
    offer_layer()
    add_plugins()
    show_runs()
    own = {"identity_provider_class": "PortalIdentity", "kernel_manager_class": "Kernels"}
    flags = [f"--ServerApp.{name}=__main__.{value}" for name, value in own.items()]
    flags.append(f"--LabApp.extra_labextensions_path={show_notices(sys.argv[1])}")
    server = LabApp.initialize_server(argv=[*sys.argv[2:], *flags])
    server.web_app.add_handlers(".*$", [(r"/api/portal/activity", Activity)])
    server.start()
