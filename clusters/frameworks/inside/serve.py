"""Serves one version of a model over HTTP, as `python -c` inside a task: by the Open Inference Protocol v2 and TensorFlow
Serving's REST, two encodings of the same request. Sources: the protocol's specification, and
tensorflow.org/tfx/serving/api_rest.

A model of any format becomes a `Model`: names, types and shapes of tensors, and a function from arrays to arrays. Requests are
validated against these before the function is called. It runs in as many threads as there are cores, so health checks are
answered meanwhile; with too many requests waiting, further ones get 503. The server is ready once the model has answered its
sample request, so no caller pays for the model's first call.

If the model comes with a sample of its training data, inputs and outputs are counted in the bins of that sample (`Drift`).
Others read the counts and compare them.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiohttp import web

from clusters.frameworks.inside.serve_drift import Drift, drift_of
from clusters.frameworks.inside.serve_formats import load
from clusters.frameworks.inside.serve_protocols import cut, of_v1, of_v2, to_v1, to_v2, wanted
from clusters.frameworks.inside.serve_tensors import TENSORFLOW, Arrays, Model, Tensor, Wrong, line_of

# A request in either protocol, from a file beside the model or set by the portal.
SAMPLE = "sample-request.json"
# The header with the JSON's length in bytes, when binary tensors follow it.
JSON_BYTES = "Inference-Header-Content-Length"


class Server:
    """One version of one model. Up to `most_waiting` requests wait for a thread; further ones get 503."""

    def __init__(
        self, model: Model, name: str, version: str, threads: int, most_waiting: int, most_bytes: int, drift: Drift
    ) -> None:
        self.model, self.name, self.version, self.most_bytes, self.drift = model, name, version, most_bytes, drift
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="run")
        self.most, self.waiting, self.ready = threads + most_waiting, 0, False

    def app(self) -> web.Application:
        app = web.Application(client_max_size=self.most_bytes, middlewares=[self.errors])
        get, post = app.router.add_get, app.router.add_post
        get("/v2", self.server_metadata)
        get("/v2/health/live", self.live)
        get("/v2/health/ready", self.is_ready)
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            get(base, self.metadata)
            get(f"{base}/ready", self.is_ready)
            get(f"{base}/drift", self.drifted)
            post(f"{base}/infer", self.infer)
        for base in ("/v1/models/{model:[^/:]+}", "/v1/models/{model:[^/:]+}/versions/{version:[^/:]+}"):
            get(base, self.status)
            get(f"{base}/metadata", self.tensorflow_metadata)
            post(f"{base}:predict", self.predict)
        return app

    @web.middleware
    async def errors(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answers every refusal in the form of both protocols: {"error": sentence}."""
        try:
            for key, own in (("model", self.name), ("version", self.version)):
                asked = request.match_info.get(key, own)
                if asked != own:
                    sentence = f"There is no {key} “{asked}” here; this is {self.name}, version {self.version}."
                    return _error(404, sentence)
            response: web.StreamResponse = await handler(request)
            return response
        except Wrong as wrong:
            return _error(400, str(wrong))
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"A request has at most {self.most_bytes / 1e6:.1f} MB.")
        except web.HTTPException as error:
            return _error(error.status, error.reason)

    async def live(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def is_ready(self, request: web.Request) -> web.Response:
        return web.json_response({"ready": self.ready, "name": self.name}, status=200 if self.ready else 503)

    async def server_metadata(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "gpu-cloud-serve", "version": "1", "extensions": ["binary_tensor_data"]})

    async def metadata(self, request: web.Request) -> web.Response:
        model = self.model
        return web.json_response({
            "name": self.name, "versions": [self.version], "platform": model.platform,
            "inputs": [each.document for each in model.inputs], "outputs": [each.document for each in model.outputs],
        })  # fmt: skip

    async def drifted(self, request: web.Request) -> web.Response:
        return web.json_response(self.drift.document)

    async def status(self, request: web.Request) -> web.Response:
        said = {"version": self.version, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return web.json_response({"model_version_status": [said]})

    async def tensorflow_metadata(self, request: web.Request) -> web.Response:
        def info(tensors: Sequence[Tensor]) -> dict[str, Any]:
            return {
                each.name: {
                    "dtype": TENSORFLOW[each.datatype],
                    "tensor_shape": {
                        "dim": [{"size": str(size), "name": ""} for size in each.shape or ()],
                        "unknown_rank": each.shape is None,
                    },
                    "name": each.name,
                }
                for each in tensors
            }

        signature = {
            "inputs": info(self.model.inputs), "outputs": info(self.model.outputs),
            "method_name": "tensorflow/serving/predict",
        }  # fmt: skip
        return web.json_response({
            "model_spec": {"name": self.name, "signature_name": "", "version": self.version},
            "metadata": {"signature_def": {"signature_def": {"serving_default": signature}}},
        })  # fmt: skip

    async def infer(self, request: web.Request) -> web.Response:
        head, binary = cut(await request.read(), request.headers.get(JSON_BYTES))
        body = _json(head)
        arrays = of_v2(body, self.model, binary)
        made = await self.run(arrays)
        return _answer(*to_v2(self.name, self.version, str(body.get("id", "")), made, wanted(body, made)), arrays)

    async def predict(self, request: web.Request) -> web.Response:
        arrays, by_rows = of_v1(_json(await request.read()), self.model)
        return _answer(to_v1(await self.run(arrays), by_rows), b"", arrays)

    async def run(self, arrays: Arrays) -> Arrays:
        if self.waiting >= self.most:
            raise web.HTTPServiceUnavailable(reason="Too many requests wait for this replica. Try again.")
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, self.counted, arrays)
        except Exception as error:
            print(f"A request failed in the model: {error!r}", file=sys.stderr, flush=True)
            raise web.HTTPInternalServerError(reason=f"The model failed: {line_of(error)}") from error
        finally:
            self.waiting -= 1

    def counted(self, arrays: Arrays) -> Arrays:
        made = self.model.run(arrays)
        if self.ready:  # the sample request does not count
            self.drift.count(arrays, made)
        return made

    async def warm_up(self, sample: Any) -> None:
        """Runs the sample request once, as a caller would send it. Raises SystemExit if it fails."""
        if sample is not None:
            try:
                arrays = of_v2(sample, self.model) if _is_v2(sample) else of_v1(sample, self.model)[0]
                await self.run(arrays)
            except (Wrong, web.HTTPException) as error:
                said = error.reason if isinstance(error, web.HTTPException) else str(error)
                raise SystemExit(f"The model does not answer its sample request: {said}") from error
        self.ready = True


def _is_v2(sample: Any) -> bool:
    return (
        isinstance(sample, dict)
        and isinstance(sample.get("inputs"), list)
        and all(isinstance(each, dict) and "datatype" in each for each in sample["inputs"])
    )


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"This is not JSON: {error}.") from error


def _answer(document: Mapping[str, Any], binary: bytes, arrays: Arrays) -> web.Response:
    """Returns the response, with the number of rows for the router's counters."""
    first = next(iter(arrays.values()), None)
    headers = {"X-Portal-Rows": str(len(first) if first is not None and first.ndim else 1)}
    try:
        text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return _error(500, "The model answered NaN or infinity, which JSON cannot say.")
    if not binary:
        return web.Response(body=text, content_type="application/json", charset="utf-8", headers=headers)
    headers[JSON_BYTES] = str(len(text))
    return web.Response(body=text + binary, content_type="application/octet-stream", headers=headers)


def _error(status: int, sentence: str) -> web.Response:
    headers = {"Retry-After": "1"} if status == 503 else None
    text = json.dumps({"error": sentence}, ensure_ascii=False)
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def sample_of(path: Path) -> Any:
    """Returns the request that the version was registered with, or None."""
    said = os.environ.get("PORTAL_MODEL_SAMPLE", "")
    if not said and (path / SAMPLE).is_file():
        said = (path / SAMPLE).read_text()
    return json.loads(said) if said else None


async def serve() -> None:
    given = os.environ
    path, name, version = Path(given["PORTAL_MODEL"]), given["PORTAL_MODEL_NAME"], given["PORTAL_MODEL_VERSION"]
    began = time.monotonic()
    model = load(given["PORTAL_MODEL_FORMAT"], path)
    print(f"{name}, version {version}, is loaded after {time.monotonic() - began:.1f} s.", flush=True)
    threads = int(given.get("PORTAL_MODEL_THREADS") or len(os.sched_getaffinity(0)))
    limits = (int(given.get("PORTAL_MODEL_WAITING") or 64), int(given.get("PORTAL_MODEL_MOST_BYTES") or 16_000_000))
    server = Server(model, name, version, threads, *limits, drift_of(path, model))
    await server.warm_up(sample_of(path))
    app = server.app()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=60)
    await runner.setup()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await web.TCPSite(runner, given["HOST"], int(given["PORT"])).start()
    print(f"It answers after {time.monotonic() - began:.1f} s.", flush=True)
    await ended.wait()
    # Stops accepting and answers what is in flight.
    await runner.cleanup()
    print("It has answered what it was asked, and ends.", flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
