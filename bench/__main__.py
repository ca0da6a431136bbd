"""`python -m bench` starts its own portal, measures it, prints a table and writes bench.json. `--make-run` adds `make run`.

The exit status is 1 if a target is missed. Use a quiet machine: other programs that run distort the measurements.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench import results, sizes

if TYPE_CHECKING:
    from bench.seed import Seeded
    from tests.running import Portal

ROOT = Path(__file__).resolve().parent.parent
# In order of load, the quietest part first.
NAMES = (
    "billing",
    "admitting",
    "replay",
    "cases",
    "idle",
    "listing",
    "newcomer",
    "starting",
    "posting",
    "sweeping",
    "tracking",
    "staging",
    "serving",
    "replicas",
    "storage",
    "reading",
    "searching",
    "sampling",
    "pages_of_many",
    "launching",
    "competing",
    "trials",
    "tailing",
    "following",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--make-run", action="store_true", help="also time `make run` in a fresh copy (minutes)")
    parser.add_argument("--only", default="", help=f"parts, divided by commas: {', '.join(NAMES)}")
    parser.add_argument("--output", type=Path, default=ROOT / "bench.json")
    parser.add_argument(
        "--smallest",
        action="store_true",
        help="each part in its smallest size, which shows that it works and judges nothing",
    )
    options = parser.parse_args()
    if options.smallest:
        os.environ[sizes.VARIABLE] = "1"
    only = set(filter(None, options.only.split(","))) or set(NAMES)
    if unknown := only - set(NAMES):
        parser.error(f"There is no part {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}.")
    from bench.admission import admitting, cases, replay
    from bench.portal import billing

    folder = Path(tempfile.mkdtemp(prefix="portal-bench-"))
    try:
        apart = (*billing.PARTS, *admitting.PARTS, *replay.PARTS, *cases.PARTS)
        found = _parts(apart, only, folder)
        if only - {part.__name__ for part in apart}:
            found += _measure(folder, only)
        if options.make_run:
            from bench.portal.install import make_run

            _say("make run, in a fresh copy with a warm package cache …")
            found += make_run(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(results.table(found))
    results.write(found, options.output)
    print(f"\nWritten to {options.output}")
    return 1 if not options.smallest and any(result.passed is False for result in found) else 0


def _measure(folder: Path, only: set[str]) -> list[results.Result]:
    from portal.network.outgoing import SETTING
    from tests import ports
    from tests.running import Portal

    os.environ.setdefault(SETTING, ports.setting())
    portal = Portal(folder / "data", PORTAL_DEMO="0", LOCAL_CLOUD_GPUS="8")
    _say("Starting the portal …")
    portal.start()
    try:
        os.environ |= _inner(portal)
        import django

        django.setup()
        from bench import seed
        from bench.portal import logs, measures, reading, replicas, sampling, serving, storage, sweeping, tracking

        _say(f"Making {seed.CLUSTERS:,} clusters of {seed.APPCODES} appcodes …")
        tenants = seed.seed()
        seed.settle()
        many = (sweeping.sweeping, tracking.tracking, sweeping.staging)
        local = (
            *measures.PARTS,
            *many,
            serving.serving,
            replicas.replicas,
            storage.storage,
            reading.reading,
            logs.searching,
            *sampling.PARTS,
        )
        found = _parts(local, only, portal, tenants)
        return found + _on_kubernetes(folder, only, portal, tenants)
    finally:
        portal.stop()


def _on_kubernetes(folder: Path, only: set[str], portal: Portal, tenants: Seeded) -> list[results.Result]:
    """Measures the parts that need a control plane. Returns [] if none can be built."""
    from bench.kubernetes import kube
    from tests.kube.binary import BuildError, binary

    if not only & {part.__name__ for part in kube.PARTS}:
        return []
    try:
        binary()
    except BuildError as error:
        _say(
            "Left out, because there is no Kubernetes control plane to measure with: "
            f"{', '.join(part.__name__ for part in kube.PARTS)}. {error}"
        )
        return []
    _say("Starting a Kubernetes control plane …")
    with kube.placed(folder / "plane", portal) as plane:
        return _parts(kube.PARTS, only, portal, tenants, plane)


def _parts(
    parts: Sequence[Callable[..., list[results.Result]]], only: set[str], *given: object
) -> list[results.Result]:
    found = []
    for part in parts:
        if part.__name__ in only:
            _say(f"Measuring: {(part.__doc__ or part.__name__).splitlines()[0]} …")
            made = part(*given)
            if not made:
                raise RuntimeError(f"{part.__name__} measured nothing")
            found += made
            # Show these now: they took minutes, and a later part may fail.
            _say(results.table(made))
    return found


def _inner(portal: object) -> dict[str, str]:
    """The environment of the portal's own programs: with it, this process can use the portal's database and create sessions."""
    from portal.up.servers import VALKEY_SOCKET
    from portal.up.services import socket_folder
    from tests.running import Portal

    assert isinstance(portal, Portal)
    return {
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "PORTAL_DATA": str(portal.data),
        "LOCAL_CLOUD_SOCKET": str(socket_folder(portal.data) / "agent.sock"),
        "PORTAL_ORIGIN": portal.origin,
        "PORTAL_SECRET_KEY": portal.secret("PORTAL_SECRET_KEY"),
        "DATABASE_URL": f"postgresql://portal@/portal?host={socket_folder(portal.data)}",
        "REDIS_URL": f"unix://{socket_folder(portal.data) / VALKEY_SOCKET}?db=0",
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
