"""TensorFlow: everything is in TF_CONFIG.

Source: https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable. With parameter
servers a program uses ParameterServerStrategy, with workers alone MultiWorkerMirroredStrategy (all-reduce); a master alone is
a single machine and gets no TF_CONFIG, so that a plain program stays a plain program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from clusters.frameworks.base import (
    EVALUATOR,
    MASTER,
    WORKER,
    Addresses,
    Framework,
    Launch,
    Resources,
    Role,
    Spec,
    addresses_of,
    shell,
)

# The part of TF_CONFIG that all tasks share: with a thousand tasks a hundred kilobytes.
CLUSTER = "TF_CONFIG_CLUSTER"
# Our roles in TensorFlow's words.
TASK_TYPES = {"master": "chief", "ps": "ps", "worker": "worker", "evaluator": "evaluator"}


class TensorFlow(Framework):
    name = "tensorflow"
    title = "TensorFlow"
    roles = (MASTER, Role("ps", "Parameter server", kept_alive=True), WORKER, EVALUATOR)
    reserved_env = frozenset({"TF_CONFIG", CLUSTER})

    def shared(self, spec: Spec, addresses: Addresses) -> Mapping[str, str]:
        if list(spec.active_roles) == ["master"]:
            return {}
        cluster = {
            TASK_TYPES[role.name]: addresses_of(addresses, role.name, spec.count(role.name))
            for role in self.roles
            if role.takes_part and spec.count(role.name)
        }
        return {CLUSTER: json.dumps(cluster)}

    def readers(self, spec: Spec) -> Sequence[str]:
        """With parameter servers the chief coordinates, and each worker makes its own part of the data."""
        readers = super().readers(spec)
        return ["worker"] if spec.count("ps") and "worker" in readers else readers

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        argv = shell(spec.command)
        if list(spec.active_roles) == ["master"]:
            return Launch(argv)
        # The index is a number in JSON, so the reference stands without quotes; so does what is JSON already.
        task = f'{{"type": "{TASK_TYPES[role]}", "index": $(TASK_INDEX)}}'
        return Launch(argv, {"TF_CONFIG": f'{{"cluster": $({CLUSTER}), "task": {task}}}'})
