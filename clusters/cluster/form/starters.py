"""Starter cards of New Cluster: clusters that run in any appcode, because their programs bring their data. Pure.

Each is a filled-in form that can be run as is or changed first. None needs a datastore: the sample is scikit-learn's
handwritten digits from the image. Where the appcode has a datastore for output, the model, checkpoints and summaries are
kept there; else charts come from what the program prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusters.cluster.form.choices import Offer
from clusters.frameworks import COMPUTING
from clusters.frameworks.parallel import Parallel
from clusters.frameworks.tensorflow import TensorFlow
from clusters.runs.plan import OUTPUT_PATH

# A first run that hangs ends by itself.
TIME_LIMIT = {"time_limit": "10", "time_limit_unit": "minutes"}
NOT_KEPT = "/tmp/output"  # noqa: S108  in the task, which has a /tmp of its own
PROGRAM = "python {} --sample --output {{output}} --steps {}"
# Where several tasks write, each has a folder of its own.
APART = "python {} --sample --output {{output}}/$TASK_INDEX --steps {}"


@dataclass(frozen=True)
class Card:
    """A card on New Cluster, addressed as `by`=`value`. `whose` is "" for cards that everybody has."""

    title: str
    text: str
    by: str
    value: str
    whose: str = ""


@dataclass(frozen=True)
class Starter:
    """`computing` tasks take a GPU each if there is one, `plain` tasks never do."""

    name: str
    title: str
    text: str
    command: str
    computing: Mapping[str, int]
    plain: Mapping[str, int]
    framework: str = TensorFlow.name

    @property
    def gpus(self) -> int:
        return sum(self.computing.values())

    @property
    def card(self) -> Card:
        return Card(self.title, self.text, "start", self.name)


STARTERS = {
    each.name: each
    for each in (
        Starter(
            "hello-gpu", "Hello GPU", "One task trains a small network on handwritten digits.",
            PROGRAM.format("digits_single.py", 600), {"master": 1}, {},
        ),
        Starter(
            "parameter-servers", "Parameter servers", "A master, a parameter server and two workers train it together.",
            PROGRAM.format("digits_ps.py", 600), {"master": 1, "worker": 2}, {"ps": 1},
        ),
        Starter(
            "all-reduce", "All-reduce", "A master and a worker train it in step.",
            PROGRAM.format("digits_allreduce.py", 600), {"master": 1, "worker": 1}, {},
        ),
        Starter(
            "parallel", "Parallel runs", "Four workers train it side by side, each by itself at another learning rate.",
            f"rates=(0.003 0.01 0.03 0.1)\n{APART.format('digits_single.py', 600)} --learning-rate ${{rates[$TASK_INDEX]}}",
            {"worker": 4}, {}, Parallel.name,
        ),
    )
}  # fmt: skip


def is_example(command: str) -> bool:
    """Whether a cluster with this command is one of the cards."""
    return any(command.startswith(each.command.partition("{output}")[0]) for each in STARTERS.values())


def why_not(offer: Offer) -> str:
    """Why no card can run in the chosen appcode; "" if they can."""
    if not _image(offer):
        return "No image on offer has TensorFlow and the example programs."
    return "" if offer.flavors else "No flavor is on offer."


def fields(starter: Starter, offer: Offer) -> dict[str, str]:
    """Field values for the chosen appcode, with GPUs if its quota has enough."""
    appcode = next((each for each in offer.appcodes if each.code == offer.appcode), None)
    plain = next((each.name for each in offer.flavors if not each.gpus), "")
    gpus = sorted((each for each in offer.flavors if each.gpus), key=lambda each: each.gpus)
    fits = bool(gpus) and appcode is not None and starter.gpus * gpus[0].gpus <= appcode.gpu_limit
    computing = gpus[0].name if fits else plain
    output = _output(offer)
    filled = {
        "appcode": offer.appcode,
        "name": starter.name,
        "image": _image(offer),
        "framework": starter.framework,
        "completion": COMPUTING[starter.framework].completions[0].name,
        "output": output,
        "command": starter.command.replace("{output}", OUTPUT_PATH if output else NOT_KEPT),
        **TIME_LIMIT,
    }
    for role, count in {**starter.computing, **starter.plain}.items():
        filled |= {
            f"{role}_flavor": computing if role in starter.computing else plain or computing,
            f"{role}_count": str(count),
        }
    return filled


def _output(offer: Offer) -> str:
    """The first datastore that is called a place for results; "" for none. Others may hold what nobody wants to find beside
    a first try."""
    return next((each.name for each in offer.datastores if "output" in each.name or "result" in each.name), "")


def _image(offer: Offer) -> str:
    return next((each.name for each in offer.images if offer.runs(each) and "tensorflow" in each.name), "")
