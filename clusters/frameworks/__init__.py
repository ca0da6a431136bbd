"""Frameworks: what a cluster looks like from inside its tasks. To add one: a driver in a file and its line here."""

from clusters.frameworks.base import Completion, Framework, Role
from clusters.frameworks.jax import JAX
from clusters.frameworks.pytorch import PyTorch
from clusters.frameworks.tensorflow import TensorFlow

FRAMEWORKS: dict[str, Framework] = {driver.name: driver for driver in (TensorFlow(), PyTorch(), JAX())}
# All that manifests may name, as the first driver that has it says it; in the order in which people see them.
ROLES: dict[str, Role] = {}
COMPLETIONS: dict[str, Completion] = {}
for _driver in FRAMEWORKS.values():
    ROLES |= {role.name: role for role in _driver.roles if role.name not in ROLES}
    COMPLETIONS |= {each.name: each for each in _driver.completions if each.name not in COMPLETIONS}
