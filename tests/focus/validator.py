"""The public FOCUS validator, installed once into a cache outside the tree. Its exit status is 0 whatever it finds, so that what
it prints is read. It uses the rules that it ships (FOCUS_RULES) and never asks the network for others."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.environments import installed

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
# Ships the rules 1.2.0.1 of FOCUS 1.2, and is the newest that Python 3.11 can read, whatever its metadata says.
VALIDATOR, FOCUS_RULES = "focus_validator==2.0.2", "1.2.0.1"
# What this provider supports, in the validator's words. It has neither regions nor commitments nor other currencies.
CRITERIA = (
    "ACCOUNT_NAMING_SUPPORTED", "MULTIPLE_BILLING_ACCOUNT_TYPES_SUPPORTED", "MULTIPLE_PRICING_CATEGORIES_SUPPORTED",
    "MULTIPLE_SUB_ACCOUNT_TYPES_SUPPORTED", "NEGOTIATED_PRICING_SUPPORTED", "PUBLIC_PRICE_LIST_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED", "UNIT_PRICING_SUPPORTED", "SUB_ACCOUNT_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED", "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED", "TAGGING_SUPPORTED",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """How many rules passed, which failed, and everything that was printed."""

    passed: int
    failed: list[str]
    output: str


# Its own command, once for each file in one process: to begin takes longer than to validate.
EACH = """
import sys
from focus_validator.main import main

command = sys.argv[1:sys.argv.index("--")]
for file in sys.argv[sys.argv.index("--") + 1:]:
    print("FILE", flush=True)
    sys.argv = [*command, "--data-file", file]
    main()
"""


def validate(*files: Path) -> list[Verdict]:
    """Of each file; it is CSV or Parquet, by its name."""
    folder = installed("focus-validator", REQUIREMENTS, newer=VALIDATOR)
    command = [
        folder / "bin" / "python", "-c", EACH, "focus-validator", "--validate-version", FOCUS_RULES, "--block-download",
        "--applicability-criteria", ",".join(CRITERIA), "--show-violations", "--", *(file.absolute() for file in files),
    ]  # fmt: skip
    # It looks for its list of currencies in the folder that it is started in.
    (packages,) = (folder / "lib").glob("python*/site-packages")
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540, cwd=packages, check=False
    )
    _, *outputs = re.split(r"^FILE$", done.stdout, flags=re.MULTILINE)
    assert len(outputs) == len(files), done.stdout
    return [_verdict(output) for output in outputs]


def _verdict(output: str) -> Verdict:
    summary = re.search(r"^Total: \d+ \| Pass: (\d+) \| Fail: (\d+) \| Skipped: \d+$", output, re.MULTILINE)
    assert summary, f"the validator did not come to its end:\n{output}"
    failed = re.findall(r"^\S+ (\S+): FAIL ", output, re.MULTILINE)
    assert len(failed) == int(summary[2]), output
    return Verdict(int(summary[1]), failed, output)
