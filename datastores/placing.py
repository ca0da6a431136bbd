"""What the clouds of an appcode say to a datastore. This app does not know what clouds are; whoever runs tasks registers a
judge.

A judge gets an appcode and a spec and answers what is wrong with it there, with paths as in the manifest. It is registered
once, in `AppConfig.ready`:

    datastores.placing.add(judge_volume)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from datastores.specs import DatastoreSpec
from portal.errors import FieldError
from portal.models import Appcode

Judge = Callable[[Appcode, DatastoreSpec], Sequence[FieldError]]

_judges: list[Judge] = []


def add(judge: Judge) -> None:
    if judge not in _judges:
        _judges.append(judge)


def wrongs(appcode: Appcode, spec: DatastoreSpec) -> list[FieldError]:
    return [wrong for judge in _judges for wrong in judge(appcode, spec)]
