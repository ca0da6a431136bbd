"""Loads models of every format as `Model`. Part of serve.py."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clusters.frameworks.inside.hiding import hidden
from clusters.frameworks.inside.serve_tensors import NAMES, Arrays, Model, Tensor, datatype_of

# Keras imports them for plots, wrappers and data frames, which is a third of the time that TensorFlow takes to load.
UNUSED = ("matplotlib", "sklearn", "pandas")


def load(format_: str, path: Path) -> Model:
    """Loads a model. This executes its code: its author can do here whatever the task may do."""
    if format_ not in LOADERS:
        raise SystemExit(
            f"A model of the format “{format_}” is not served by this program, which knows {', '.join(LOADERS)}."
        )
    return LOADERS[format_](path)


def saved_model(path: Path) -> Model:
    with hidden(*UNUSED):
        import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    signatures = loaded.signatures
    called = "serving_default" if "serving_default" in signatures else next(iter(signatures), "")
    if not called:
        raise SystemExit("This SavedModel has no signature; export it by model.export(…), or with signatures=….")
    function = signatures[called]
    _, inputs = function.structured_input_signature
    names = list(inputs)
    types = {name: spec.dtype.as_numpy_dtype for name, spec in inputs.items()}

    def run(arrays: Arrays) -> Arrays:
        given = {name: tf.constant(arrays[name], dtype=inputs[name].dtype) for name in names}
        return {name: value.numpy() for name, value in function(**given).items()}

    # Keeps the loaded object alive: its variables are freed with it.
    run.loaded = loaded  # type: ignore[attr-defined]
    return Model(
        "tensorflow_savedmodel",
        [
            Tensor(name, NAMES.get(np.dtype(types[name]).name, "BYTES"), _shape(spec.shape))
            for name, spec in inputs.items()
        ],
        [
            Tensor(name, NAMES.get(np.dtype(spec.dtype.as_numpy_dtype).name, "BYTES"), _shape(spec.shape))
            for name, spec in sorted(function.structured_outputs.items())
        ],
        run,
    )


def keras(path: Path) -> Model:
    with hidden(*UNUSED):
        import keras as library

    model = library.models.load_model(_only(path, "*.keras"), safe_mode=True)
    inputs = [Tensor(each.name, datatype_of(each.dtype), _shape(each.shape)) for each in model.inputs]
    outputs = [Tensor(each.name, datatype_of(each.dtype), _shape(each.shape)) for each in model.outputs]

    def run(arrays: Arrays) -> Arrays:
        given = [arrays[each.name] for each in inputs]
        made = model(given[0] if len(given) == 1 else given, training=False)
        made = made if isinstance(made, list | tuple) else [made]
        return {each.name: np.asarray(value) for each, value in zip(outputs, made, strict=True)}

    return Model("keras", inputs, outputs, run)


def onnx(path: Path) -> Model:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(_only(path, "*.onnx")))

    def tensor(each: Any) -> Tensor:
        said = each.type.removeprefix("tensor(").removesuffix(")")
        name = {"float": "float32", "double": "float64", "string": "object"}.get(said, said)
        return Tensor(each.name, NAMES.get(name, "BYTES"), tuple(n if isinstance(n, int) else -1 for n in each.shape))

    outputs = [tensor(each) for each in session.get_outputs()]

    def run(arrays: Arrays) -> Arrays:
        made = session.run(None, dict(arrays))
        return {each.name: np.asarray(value) for each, value in zip(outputs, made, strict=True)}

    return Model("onnx_onnxv1", [tensor(each) for each in session.get_inputs()], outputs, run)


def sklearn(path: Path) -> Model:
    import skops.io

    # skops refuses types that could run arbitrary code, and names them.
    estimator = skops.io.load(_only(path, "*.skops"))
    features = getattr(estimator, "n_features_in_", -1)

    def run(arrays: Arrays) -> Arrays:
        (given,) = arrays.values()
        found = {"predict": np.asarray(estimator.predict(given))}
        if hasattr(estimator, "predict_proba"):
            found["predict_proba"] = np.asarray(estimator.predict_proba(given))
        return found

    return Model("sklearn_skops", [Tensor("X", "FP64", (-1, features))], [Tensor("predict", "FP64", (-1,))], run)


def python(path: Path) -> Model:
    """Loads `model.py` with a class `Model`: constructed once with its folder; `predict` takes and returns arrays by name.
    `inputs` and `outputs` are optional lists of (name, datatype, shape)."""
    spec = importlib.util.spec_from_file_location("model", path / "model.py")
    if spec is None or spec.loader is None or not (path / "model.py").exists():
        raise SystemExit("There is no model.py, with a class Model, among the files of this version.")
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    sys.path.insert(0, str(path))
    spec.loader.exec_module(module)
    own = module.Model(path)

    def tensors(name: str) -> list[Tensor]:
        return [Tensor(called, kind, tuple(shape)) for called, kind, shape in getattr(own, name, ())]

    def run(arrays: Arrays) -> Arrays:
        return {name: np.asarray(value) for name, value in own.predict(dict(arrays)).items()}

    return Model("python", tensors("inputs"), tensors("outputs"), run)


LOADERS: Mapping[str, Callable[[Path], Model]] = {
    "saved-model": saved_model, "keras": keras, "onnx": onnx, "sklearn": sklearn, "python": python,
}  # fmt: skip


def _only(path: Path, pattern: str) -> Path:
    found = sorted(path.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"There are {len(found)} files {pattern} in this version, and one is to be served.")
    return found[0]


def _shape(said: Any) -> tuple[int, ...] | None:
    rank = getattr(said, "rank", 0)
    return None if rank is None else tuple(-1 if size is None else int(size) for size in said)
