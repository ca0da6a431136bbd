"""Frameworks: what a cluster looks like from inside its tasks. To add one: a driver in a file, a line here, its name in specs."""

from clusters.frameworks.base import Framework
from clusters.frameworks.pytorch import PyTorch
from clusters.frameworks.tensorflow import TensorFlow

FRAMEWORKS: dict[str, Framework] = {driver.name: driver for driver in (TensorFlow(), PyTorch())}
