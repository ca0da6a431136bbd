"""Serving runtimes: programs that serve models, and how they start a replica of a service. Pure.

Terms follow KServe's ServingRuntime. A command is split into words once, as a shell would, and {model}, {version} and {port} are
replaced in each word; no shell ever sees it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusters.frameworks.serving import FORMATS, HEALTH, PORT

# Default folder of a model.
FOLDER = "/elearn/model"
V2, V1, OPENAI = "open-inference-v2", "tensorflow-serving-v1", "openai-v1"
PROTOCOLS = {
    V2: "Open Inference Protocol v2",
    V1: "TensorFlow Serving's REST (v1)",
    OPENAI: "OpenAI's REST (v1)",
}
_PLACES = re.compile(r"\{(model|version|port)\}")


@dataclass(frozen=True)
class Template:
    """A runtime's settings for replicas. `command`, `health` and `folder` may contain {model}, {version} and {port}."""

    command: str
    health: str
    folder: str
    port: int
    warm_up_seconds: int = 0


def server(runtime: str, template: Template, model: str, version: int) -> dict[str, Any]:
    """Returns the `server` of a cluster's spec (manifest.ServerSpec) as JSON. Raises ValueError for a malformed command."""
    values = {"model": model, "version": str(version), "port": str(template.port)}

    def filled(text: str) -> str:
        return _PLACES.sub(lambda found: values[found[1]], text)

    return {
        "runtime": runtime,
        "argv": [filled(word) for word in shlex.split(template.command)],
        "port": template.port,
        "health": filled(template.health),
        "folder": filled(template.folder),
        "warmUpSeconds": template.warm_up_seconds,
    }


# The initial catalogue, as columns of rows. The three that are not ours are disabled until an administrator enables them.
SHIPPED: tuple[Mapping[str, Any], ...] = (
    {
        "name": "portal",
        "title": "The portal's own server",
        "description": "In the image of the service, on Kubernetes and on this machine.",
        "formats": [*FORMATS],
        "protocols": [V1, V2],
        "port": PORT,
        "health": HEALTH,
    },
    {
        "name": "tensorflow-serving",
        "title": "TensorFlow Serving",
        "description": "On CPUs; the same tag with -gpu behind it is for GPUs.",
        "formats": ["saved-model"],
        "protocols": [V1],
        "image": "tensorflow/serving:2.19.1",
        "command": "tensorflow_model_server --port=8500 --rest_api_port={port} --rest_api_timeout_in_ms=600000 "
        "--model_name={model} --model_base_path=/models/{model}",
        "port": 8501,
        # The model's status returns 200 even while loading; the metadata return an error until the model is loaded.
        "health": "/v1/models/{model}/versions/{version}/metadata",
        "folder": "/models/{model}/{version}",
        "enabled": False,
    },
    {
        "name": "triton",
        "title": "Triton Inference Server",
        "description": "Of ONNX. The file of the version has to be called model.onnx.",
        "formats": ["onnx"],
        "protocols": [V2],
        "image": "nvcr.io/nvidia/tritonserver:25.06-py3",
        "command": "tritonserver --model-repository=/models --http-port={port} --allow-grpc=false --allow-metrics=false",
        "port": 8000,
        "health": "/v2/models/{model}/versions/{version}/ready",
        "folder": "/models/{model}/{version}",
        "enabled": False,
    },
    {
        "name": "vllm",
        "title": "vLLM",
        "description": "Language models as Hugging Face keeps them, of the format “other”; on GPUs.",
        "formats": ["other"],
        "protocols": [OPENAI],
        "image": "vllm/vllm-openai:v0.11.0",
        "command": "python3 -m vllm.entrypoints.openai.api_server --model /elearn/model --served-model-name {model} "
        "--port {port}",
        # Offline; and PyTorch needs a user name, which the task's user ID does not have in the image.
        "env": {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "USER": "vllm"},
        "port": 8000,
        "health": "/health",
        "drain_seconds": 120,
        "enabled": False,
    },
)
