"""TensorFlow: everything is in TF_CONFIG.

Source: https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable. With parameter
servers a program uses ParameterServerStrategy, otherwise MultiWorkerMirroredStrategy (all-reduce). With workers alone TensorFlow
makes worker 0 the chief. A single task gets no TF_CONFIG, so that a plain program stays a plain program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from clusters.frameworks.base import (
    EVALUATOR,
    LEADER,
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
from portal.manifests import field_error

# The part of TF_CONFIG that all tasks share: a hundred kilobytes for a thousand tasks.
CLUSTER = "TF_CONFIG_CLUSTER"
# "1" makes tf.keras the package tf_keras (Keras 2). Without it tf.keras is Keras 3 since TensorFlow 2.16.
KERAS = "TF_USE_LEGACY_KERAS"
# TensorFlow's names of our roles.
TASK_TYPES = {"master": "chief", "ps": "ps", "worker": "worker", "evaluator": "evaluator"}


class TensorFlow(Framework):
    name = "tensorflow"
    title = "TensorFlow"
    roles = (LEADER, Role("ps", "Parameter server", kept_alive=True), WORKER, EVALUATOR)
    reserved_env = frozenset({"TF_CONFIG", CLUSTER})
    has_keras = True

    def validate(self, spec: Spec) -> None:
        super().validate(spec)
        if spec.keras and KERAS in spec.env:
            raise field_error(
                f"{KERAS} in the environment variables says it already; leave one of the two out.", "keras"
            )

    def shared(self, spec: Spec, addresses: Addresses) -> Mapping[str, str]:
        if self.is_alone(spec):
            return {}
        cluster = {
            TASK_TYPES[role.name]: addresses_of(addresses, role.name, spec.count(role.name))
            for role in self.roles
            if role.takes_part and spec.count(role.name)
        }
        return {CLUSTER: json.dumps(cluster)}

    def readers(self, spec: Spec) -> Sequence[str]:
        """With parameter servers the chief only coordinates, and the workers read the parts of the data."""
        readers = super().readers(spec)
        return ["worker"] if spec.count("ps") and "worker" in readers else readers

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        argv = shell(spec.command)
        env = {KERAS: "1" if spec.keras == 2 else "0"} if spec.keras else {}
        if self.is_alone(spec):
            return Launch(argv, env)
        # The index is a JSON number and the cluster is JSON already, so both references are unquoted.
        task = f'{{"type": "{TASK_TYPES[role]}", "index": $(TASK_INDEX)}}'
        return Launch(argv, {**env, "TF_CONFIG": f'{{"cluster": $({CLUSTER}), "task": {task}}}'})
