"""Framework drivers. To add one: write a driver in its own file and add it to `_ALL`."""

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
# Frameworks for computing, and applications opened in a browser: each kind has its own form.
COMPUTING = {driver.name: driver for driver in _ALL if not driver.is_application}
INSTALLED = {driver.name: driver for driver in _ALL if driver.is_installed}
APPLICATIONS = {driver.name: driver for driver in _ALL if driver.is_application}


def _roles(drivers: Iterable[Framework]) -> dict[str, Role]:
    """Roles by name, in display order. The first driver with a role defines it."""
    found: dict[str, Role] = {}
    for driver in drivers:
        found |= {role.name: role for role in driver.roles if role.name not in found}
    return found


def _completions(drivers: Iterable[Framework]) -> dict[str, Completion]:
    found: dict[str, Completion] = {}
    for driver in drivers:
        found |= {each.name: each for each in driver.completions if each.name not in found}
    return found


# Everything that manifests may name, and the part that the cluster form offers.
ROLES, COMPLETIONS = _roles(_ALL), _completions(_ALL)
COMPUTING_ROLES, COMPUTING_COMPLETIONS = _roles(COMPUTING.values()), _completions(COMPUTING.values())
