#!/usr/bin/env python3
"""Inputs and outputs of a SavedModel: reads saved_model.pb from standard input and writes JSON, `{"inputs": […], "outputs":
[…]}`, or null for a model without a signature.

It is a separate program because the file is a tenant's: the file is only parsed, with limited memory and time, and can crash
only this process. The message classes come from TensorBoard. It lacks the outermost one
(tensorflow/core/protobuf/saved_model.proto), so the one field that is needed is declared here.
"""

import json
import resource
import sys
from typing import Any

MEMORY, SECONDS = 2 * 2**30, 20
MOST = 200
SERVING = "serving_default"
# NumPy's names.
TYPES = {"float": "float32", "double": "float64", "half": "float16"}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sys.stdout.write(json.dumps(signature(sys.stdin.buffer.read())))


def signature(data: bytes) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from tensorboard.compat.proto import meta_graph_pb2

    field = descriptor_pb2.FieldDescriptorProto
    meta_graph = meta_graph_pb2.MetaGraphDef.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(name="portal/saved_model.proto", package="portal", syntax="proto3")
    file.dependency.append(meta_graph.file.name)
    outermost = file.message_type.add(name="SavedModel")
    outermost.field.add(
        name="meta_graphs",
        number=2,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=f".{meta_graph.full_name}",
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    model = message_factory.GetMessageClass(pool.FindMessageTypeByName("portal.SavedModel")).FromString(data)

    graphs = sorted(model.meta_graphs, key=lambda each: "serve" not in each.meta_info_def.tags)
    for graph in graphs:
        named = {name: said for name, said in graph.signature_def.items() if not name.startswith("__")}
        chosen = named.get(SERVING) or next((named[name] for name in sorted(named)), None)
        if chosen is not None:
            return {"inputs": tensors(chosen.inputs), "outputs": tensors(chosen.outputs)}
    return None


def tensors(named: Any) -> list[dict[str, Any]]:
    from tensorboard.compat.proto import types_pb2

    found = []
    for name in sorted(named)[:MOST]:
        said = named[name]
        word = types_pb2.DataType.Name(said.dtype).removeprefix("DT_").lower()
        shape = None
        if not said.tensor_shape.unknown_rank:
            shape = [None if dim.size < 0 else dim.size for dim in said.tensor_shape.dim]
        found.append({"name": name, "dtype": TYPES.get(word, word), "shape": shape})
    return found


if __name__ == "__main__":
    main()
