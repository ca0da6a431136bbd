"""The program that a run starts from: the files in its spec, or the commit that a ref has when the run is planned.

The commit is resolved once, outside any transaction, and stored with the run before the cloud is called: all tasks and attempts
start from it. Few threads at a time wait for Git servers, one for each appcode, so that a slow server holds up nobody else.
"""

from __future__ import annotations

import collections
import threading

from django.conf import settings

from clusters.clouds.bulkhead import PutOff
from clusters.clouds.drivers import git
from clusters.clouds.drivers.base import CloudError, CloudRefused, CodeCommit, CodeFiles
from clusters.git_tokens.models import GitToken
from clusters.manifest.code import CodeSpec
from clusters.runs.models import Run
from portal.network import outgoing

# Threads of a process that may wait for Git servers.
AT_ONCE = 2
_places = threading.Semaphore(AT_ONCE)
_of: collections.defaultdict[int, threading.Lock] = collections.defaultdict(threading.Lock)


class NotYet(CloudError):
    """A Git server cannot be reached now."""


def commit_of(run: Run, code: CodeSpec) -> str:
    """The commit that the run starts from. Raises NotYet, CloudRefused for permanent errors, and PutOff."""
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
    """The code for the plan. `commit_of` must have stored a commit in `run.code`."""
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
