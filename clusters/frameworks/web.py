"""A user's web program: Gradio, Streamlit, MLflow, a dashboard; anything that answers HTTP on a port.

HOST and PORT, and the variables that common frameworks read, name the address to listen on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from clusters.frameworks.base import (
    LOOPBACK,
    Addresses,
    Completion,
    Framework,
    Launch,
    Resources,
    Role,
    Spec,
    shell,
)
from portal.manifests import field_error

HOSTS = ("HOST", "GRADIO_SERVER_NAME", "STREAMLIT_SERVER_ADDRESS")
PORTS = ("PORT", "GRADIO_SERVER_PORT", "STREAMLIT_SERVER_PORT")


class Web(Framework):
    name = "web"
    title = "Web program"
    is_application = True
    is_installed = False
    modes = ("service",)
    roles = (Role("server", "Server", least=1, most=1, kept_alive=True),)
    completions = (Completion("server", "server", "when it is stopped"),)
    reserved_env: ClassVar[frozenset[str]] = frozenset({*HOSTS, *PORTS})

    def validate(self, spec: Spec) -> None:
        super().validate(spec)
        if not spec.endpoints("server"):
            raise field_error(
                "Name what it serves, for example {“name”: “web”, “port”: 8080}.", "roles", "server", "endpoints"
            )

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        port = str(spec.endpoints(role)[0].port)
        return Launch(shell(spec.command), dict.fromkeys(HOSTS, LOOPBACK) | dict.fromkeys(PORTS, port))
