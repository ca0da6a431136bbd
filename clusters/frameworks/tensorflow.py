"""TensorFlow: everything is in TF_CONFIG.

Source: https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable. With parameter
servers a program uses ParameterServerStrategy, with workers alone MultiWorkerMirroredStrategy (all-reduce); a master alone is
a single machine and gets no TF_CONFIG, so that a plain program stays a plain program.
"""

from __future__ import annotations

import json

from clusters.frameworks.base import Addresses, addresses_of
from clusters.manifest import ClusterSpec, RoleName

# The part of TF_CONFIG that all tasks share: with a thousand tasks a hundred kilobytes.
CLUSTER = "TF_CONFIG_CLUSTER"
# Our roles in TensorFlow's words. An evaluator takes part in nothing and therefore is not in the cluster description.
TASK_TYPES: dict[RoleName, str] = {"master": "chief", "ps": "ps", "worker": "worker", "evaluator": "evaluator"}


class TensorFlow:
    name = "tensorflow"

    def shared(self, spec: ClusterSpec, addresses: Addresses) -> dict[str, str]:
        if list(spec.active_roles) == ["master"]:
            return {}
        cluster = {
            TASK_TYPES[each]: addresses_of(addresses, each, spec.count(each))
            for each in spec.active_roles
            if each != "evaluator"
        }
        return {CLUSTER: json.dumps(cluster)}

    def environment(self, spec: ClusterSpec, role: RoleName, addresses: Addresses) -> dict[str, str]:
        if list(spec.active_roles) == ["master"]:
            return {}
        # The index is a number in JSON, so the reference stands without quotes; so does what is JSON already.
        task = f'{{"type": "{TASK_TYPES[role]}", "index": $(TASK_INDEX)}}'
        return {"TF_CONFIG": f'{{"cluster": $({CLUSTER}), "task": {task}}}'}
