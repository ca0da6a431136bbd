"""Serves one version of a registered model over HTTP: by the Open Inference Protocol v2 and TensorFlow Serving's REST, with our
own program (inside/serve.py), which needs aiohttp, NumPy and the model's framework.

KServe's server was tried first. It calls the model in its event loop, so health checks wait behind a slow request; it answers a
tensor of the wrong shape with 500; and with the same SavedModel on two cores it answered 411 requests a second, ours 1,035.
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
from clusters.frameworks.programs import text
from portal.manifests import field_error

SERVE = text("serve.py")
# The port of TensorFlow Serving's REST.
PORT = 8501
HEALTH = "/v2/health/ready"
ENDPOINT = "predict"
# The keys of LOADERS in serve_formats.py.
FORMATS = ("saved-model", "keras", "onnx", "sklearn", "python")


class Serving(Framework):
    name = "serving"
    title = "Model server"
    is_application = True
    idle_signal = "use"
    modes = ("service",)
    needs_command = False
    roles = (Role("server", "Server", least=1, most=1, kept_alive=True),)
    completions = (Completion("server", "server", "when it is stopped"),)
    reserved_env: ClassVar[frozenset[str]] = frozenset({"HOST", "PORT"})

    def validate(self, spec: Spec) -> None:
        super().validate(spec)
        if not spec.model:
            raise field_error(
                "Name what it serves: a model and an alias, digits@champion, or a version, digits/3.", "model"
            )

    def endpoints(self, spec: Spec, role: str) -> Sequence[Endpoint]:
        other = spec.server
        own = (
            Endpoint(ENDPOINT, other.port, other.health, warm_up_seconds=other.warm_up_seconds)
            if other
            else Endpoint(ENDPOINT, PORT, HEALTH)
        )
        return (own, *spec.endpoints(role))

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        argv, port = (spec.server.argv, spec.server.port) if spec.server else (("python", "-c", SERVE), PORT)
        # Another runtime comes as its own container, which may have no shell and no Python.
        env = {"HOST": LOOPBACK, "PORT": str(port)}
        return Launch(prepared(spec.command, argv), env, from_image=spec.server is not None)


def path_of(model: str, body: object) -> str:
    """Returns the path for a body in the form of OpenAI's REST or Open Inference, else that of TensorFlow Serving's REST."""
    if isinstance(body, dict) and {"messages", "prompt"} & body.keys():
        return "/v1/chat/completions" if "messages" in body else "/v1/completions"
    inputs = body.get("inputs") if isinstance(body, dict) else None
    named = isinstance(inputs, list) and all(isinstance(each, dict) and "datatype" in each for each in inputs)
    return f"/v2/models/{model}/infer" if named else f"/v1/models/{model}:predict"
