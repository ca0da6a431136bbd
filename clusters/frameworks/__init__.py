"""Frameworks: what a cluster looks like from inside its tasks. To add one: a driver in a file and its line here."""

from collections.abc import Iterable

from clusters.frameworks.base import Completion, Framework, Role
from clusters.frameworks.jax import JAX
from clusters.frameworks.jupyter import Jupyter
from clusters.frameworks.notebook import Notebook
from clusters.frameworks.parallel import Parallel
from clusters.frameworks.pytorch import PyTorch
from clusters.frameworks.serving import Serving
from clusters.frameworks.tensorboard import TensorBoard
from clusters.frameworks.tensorflow import TensorFlow
from clusters.frameworks.web import Web

_ALL = (TensorFlow(), PyTorch(), JAX(), Parallel(), Notebook(), Jupyter(), TensorBoard(), Serving(), Web())
FRAMEWORKS: dict[str, Framework] = {driver.name: driver for driver in _ALL}
# What people compute with, and what they open in a browser: each has a form of its own.
COMPUTING = {driver.name: driver for driver in _ALL if not driver.is_application}
INSTALLED = {driver.name: driver for driver in _ALL if driver.is_installed}
APPLICATIONS = {driver.name: driver for driver in _ALL if driver.is_application}


def _roles(drivers: Iterable[Framework]) -> dict[str, Role]:
    """As the first driver that has it says it; in the order in which people see them."""
    found: dict[str, Role] = {}
    for driver in drivers:
        found |= {role.name: role for role in driver.roles if role.name not in found}
    return found


def _completions(drivers: Iterable[Framework]) -> dict[str, Completion]:
    found: dict[str, Completion] = {}
    for driver in drivers:
        found |= {each.name: each for each in driver.completions if each.name not in found}
    return found


# All that manifests may name, and what of it the form of a cluster offers.
ROLES, COMPLETIONS = _roles(_ALL), _completions(_ALL)
COMPUTING_ROLES, COMPUTING_COMPLETIONS = _roles(COMPUTING.values()), _completions(COMPUTING.values())
