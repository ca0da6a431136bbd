"""The tab that tries out a service: sends its model version's sample request, and shows the commands for the same.

The portal calls a replica directly, as the page of a model server does, not the service's address. So it needs no
token, counts against no caller's limit, and works while no router does.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from clusters.applications.requests import ask_at, example_of, tensor_shown
from clusters.catalog.models import ServingRuntime
from clusters.frameworks.runtimes import OPENAI, PROTOCOLS, V1, V2
from clusters.frameworks.serving import path_of
from clusters.model_registry.models import ModelVersion
from clusters.services import revisions
from clusters.services.access import service_for
from clusters.services.manifest import name_of_model
from clusters.services.models import Replica, Service
from clusters.services.pages.service import head_of
from clusters.services.summary import address
from portal.access import OPERATE
from portal.api.problems import Unavailable
from portal.errors import Conflict, Invalid
from portal.pages.appcodes import person
from portal.web.limits import LOOKS

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


@dataclass(frozen=True)
class Commands:
    """Commands that send the request by one protocol."""

    key: str
    title: str
    url: str
    shell: str
    python: str


@require_safe
def try_page(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    service = service_for(person(request), appcode, name, OPERATE)
    revision = revisions.answering(service)
    version = revision.version if revision else None
    sample = version.sample if version and version.sample is not None else None
    example, of_signature = example_of(version.signature if version else None)
    ways = _ways(service, version, sample, example)
    context = {
        "tab": "try",
        "version": version,
        "is_example": sample is None,
        "of_signature": of_signature,
        # As registered, if the runtime accepts that.
        "body": json.dumps(
            next((body for *_, body in ways if body == sample), ways[0][-1]),
            ensure_ascii=False,
            indent=None if sample is None else 2,
        ),
        "inputs": [tensor_shown(each) for each in (version.signature or {}).get("inputs") or ()] if version else [],
        "commands": [_commands(protocol, title, service, path, body) for protocol, title, path, body in ways],
    }
    return render(request, "clusters/services/try.html", head_of(request, service, whole=False) | context)


def _ways(
    service: Service, version: ModelVersion | None, sample: Any, example: Any
) -> list[tuple[str, str, str, object]]:
    """The protocols of its runtime: protocol, title, path, and the sample request in it, or else the example."""
    model, given = name_of_model(service.spec["model"]), example if sample is None else sample
    is_chat = isinstance(sample, dict) and bool({"messages", "prompt"} & sample.keys())
    chat = sample if is_chat else {"model": model, **CHAT}
    ways: dict[str, tuple[str, object]] = {
        V1: (f"/v1/models/{model}:predict", _as_v1(given)),
        V2: (f"/v2/models/{model}/infer", _as_v2(given, version)),
        OPENAI: (path_of(model, chat), chat),
    }
    spoken = (
        ServingRuntime.objects.filter(name=service.spec.get("runtime", "")).values_list("protocols", flat=True).first()
    )
    return [(each, PROTOCOLS[each], *ways[each]) for each in spoken or (V1, V2)]


@require_POST
def send(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Sends the request as typed and shows the result."""
    user = person(request)
    service = service_for(user, appcode, name, OPERATE)
    context: dict[str, Any] = {"error": "", "answer": None}
    try:
        body = json.loads(request.POST.get("body", ""))
        replica = _replica(service)
        with LOOKS.enter(user.pk):
            path = path_of(name_of_model(service.spec["model"]), body)
            assert replica.cluster is not None
            context["answer"] = ask_at(replica.cluster, replica.address, path, json.dumps(body).encode())
        context["replica"] = replica
    except (ValueError, RecursionError) as error:
        context["error"] = f"This is not JSON: {error}."
    except (Conflict, Unavailable) as error:
        context["error"] = str(error)
    except Invalid as invalid:
        context["error"] = invalid.errors[0].message
    return render(request, "clusters/services/_answer.html", context)


def _replica(service: Service) -> Replica:
    """A serving replica of the revision with the largest share of requests. Raises Conflict."""
    rows = service.replicas.filter(state=Replica.State.SERVING, revision__weight__gt=0).exclude(address="")
    rows = rows.filter(cluster__isnull=False).select_related("revision", "cluster")
    found = rows.order_by("-revision__weight", "slot").first()
    if found is None:
        raise Conflict(f"No replica of {service.name} answers now. {service.message}".strip())
    return found


def _commands(key: str, title: str, service: Service, path: str, body: object) -> Commands:
    text = json.dumps(body, ensure_ascii=False)
    # Quoted because another user may have registered the sample, and people paste this into their shells.
    return Commands(key, title, address(service).rstrip("/") + path, shlex.quote(text), repr(text))


def _as_v1(sample: Any) -> object:
    """The sample request for TensorFlow Serving."""
    if not _is_v2(sample):
        return sample
    inputs = {each["name"]: _shaped(each.get("data"), each.get("shape")) for each in sample["inputs"]}
    return {"inputs": next(iter(inputs.values())) if len(inputs) == 1 else inputs}


def _as_v2(sample: Any, version: ModelVersion | None) -> object:
    """The sample request for the Open Inference Protocol. Uses the signature to convert one of the other protocol."""
    if _is_v2(sample):
        return sample
    said = sample if isinstance(sample, dict) else {}
    values = said.get("instances", said.get("inputs"))
    signature = (version.signature or {}).get("inputs") or () if version else ()
    first = signature[0] if signature else {"name": "input", "dtype": "float32"}
    if isinstance(values, dict):
        named = list(values.items())
    elif isinstance(values, list) and values and isinstance(values[0], dict):
        named = [(name, [each.get(name) for each in values]) for name in values[0]]
    else:
        named = [(str(first["name"]), values)]
    types = {str(each["name"]): str(each["dtype"]) for each in signature}
    return {"inputs": [_v2_input(name, data, types.get(name, str(first["dtype"]))) for name, data in named]}


def _v2_input(name: str, data: Any, dtype: str) -> dict[str, Any]:
    shape, level = [], data
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    datatype = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "string": "BYTES", "bool": "BOOL"}.get(
        dtype, dtype.upper()
    )
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def _shaped(data: Any, shape: Any) -> Any:
    """A flat list in its shape, so that both protocols have the same data."""
    if not (
        isinstance(data, list) and isinstance(shape, list) and len(shape) > 1 and data and not isinstance(data[0], list)
    ):
        return data
    size = len(data) // shape[0] if shape[0] else 0
    return [_shaped(data[n * size : (n + 1) * size], shape[1:]) for n in range(shape[0])] if size else data


def _is_v2(sample: Any) -> bool:
    inputs = sample.get("inputs") if isinstance(sample, dict) else None
    return isinstance(inputs, list) and all(isinstance(each, dict) and "datatype" in each for each in inputs)
