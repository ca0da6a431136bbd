"""The token with which the tasks of a run record parameters and metrics (clusters/tracking). It has no row: it is the signed id
of the run, and good until the run is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.signing import BadSignature, Signer

# A person who sets one of these in ENV has a tracking server of their own, which must not get our token.
OWN = frozenset({"MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME"})
_signer = Signer(salt="clusters.tracking")


def token_for(run_id: int, env: Mapping[str, Any]) -> str:
    """Returns the token of a run; "" if its own ENV names a tracking server."""
    return "" if OWN & env.keys() else _signer.sign(str(run_id))


def run_id_of(token: str) -> int | None:
    """Returns whose token it is; None for a forged one."""
    try:
        return int(_signer.unsign(token))
    except (BadSignature, ValueError):
        return None
