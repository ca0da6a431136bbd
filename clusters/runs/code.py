"""Which program a run starts from: the files of its spec, or the commit that a ref has when the run is planned.

The commit is asked for once, outside any transaction, and kept with the run before the cloud is told anything: all its tasks and
attempts start from that one. Servers of people are asked by few threads at a time, and for each appcode by one of them, so that
one that is slow keeps nobody else.
"""

from __future__ import annotations

import collections
import threading

from django.conf import settings

from clusters.clouds.bulkhead import PutOff
from clusters.clouds.drivers import git
from clusters.clouds.drivers.base import CloudError, CloudRefused, CodeCommit, CodeFiles
from clusters.code import CodeSpec
from clusters.models import GitToken, Run
from portal import outgoing

# Threads of a process that wait for Git servers.
AT_ONCE = 2
_places = threading.Semaphore(AT_ONCE)
_of: collections.defaultdict[int, threading.Lock] = collections.defaultdict(threading.Lock)


class NotYet(CloudError):
    """A Git server cannot be asked now."""


def commit_of(run: Run, code: CodeSpec) -> str:
    """The commit from which it starts. Raises NotYet, CloudRefused for what will not become better, and PutOff."""
    assert code.git is not None
    own = _of[run.cluster.appcode_id]
    if not own.acquire(blocking=False):
        raise PutOff("Another run of the appcode waits for a Git server; this follows.")
    is_placed = _places.acquire(blocking=False)
    try:
        if not is_placed:
            raise PutOff("Other runs wait for Git servers; this follows.")
        return git.resolve(code.git, code.ref, _login(run, code), git.judged(outgoing, settings.OUTGOING))
    except git.Refused as error:
        raise CloudRefused(f"The code cannot be fetched: {error}") from None
    except git.Failed as error:
        raise NotYet(f"The code cannot be fetched: {error}") from None
    finally:
        if is_placed:
            _places.release()
        own.release()


def planned(run: Run, code: CodeSpec | None) -> CodeFiles | CodeCommit | None:
    """For the plan. A commit must have been found."""
    if code is None:
        return None
    if code.files is not None:
        return CodeFiles(code.files)
    assert code.git is not None
    login = _login(run, code)
    return CodeCommit(code.git, run.code["commit"], code.path, login.name, login.token)


def _login(run: Run, code: CodeSpec) -> git.Login:
    found = GitToken.objects.filter(appcode=run.cluster.appcode_id, host=code.host).first()
    return git.Login(found.name, found.token) if found else git.Login()
