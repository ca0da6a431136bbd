"""MLflow itself, installed once into a cache outside the tree, reads an archive of the portal."""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kube.binary import cache

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
    python = _installed() / "bin" / "python"
    command = [python, "-W", "ignore", "-c", READ, folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _installed() -> Path:
    """The environment, made now if need be; two processes that want it at the same time make it once."""
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache("mlflow") / key
    with (cache("mlflow") / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install"]
            subprocess.run([*pip, "-r", REQUIREMENTS], check=True)
            (folder / "complete").touch()
    return folder
