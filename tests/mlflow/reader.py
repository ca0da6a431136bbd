"""MLflow itself, installed once into a cache outside the tree, reads an archive of the portal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.environments import installed

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
READ = """
import json, sys
import numpy as np
from mlflow.models import Model
model = Model.load(sys.argv[1])
said = {"flavors": sorted(model.flavors), "run": model.run_id, "metadata": model.metadata}
said["signature"] = model.signature and model.signature.to_dict()
example = model.load_input_example(sys.argv[1])
said["example"] = None if example is None else {name: each.tolist() for name, each in example.items()}
if list(model.flavors) == ["python_function"]:
    import mlflow.pyfunc
    made = mlflow.pyfunc.load_model(sys.argv[1]).predict(example)
    said["answer"] = {name: each.tolist() for name, each in made.items()}
print(json.dumps(said))
"""


def read(folder: Path) -> dict[str, Any]:
    """Flavors, signature, example, run and metadata; of a Python class also what it answers its example."""
    python = installed("mlflow", REQUIREMENTS) / "bin" / "python"
    # -B: reading a version must not add compiled code to it.
    command = [python, "-B", "-W", "ignore", "-c", READ, folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
