"""What one task can see of this machine: its programs and its data, and nothing of other tenants.

A task gets its own mount, PID, IPC, UTS and cgroup namespaces, and a network (netns.py). Its root is a fresh, read-only tmpfs
with only the system's programs (/usr and the like, read-only), the image's environment and the mounts of its plan; /tmp,
/dev/shm and /proc are its own. As root the task then becomes an unprivileged uid without capabilities; for an ordinary user a
user namespace makes the same possible. Tasks of a run reach each other by 127.0.0.1, but no other run and no server of this
machine, unless the kernel has no network namespaces (`Node.shares_network`).

Imports only small modules of the standard library, because every task pays for them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from clusters.clouds.drivers.local.task import seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict

    class Bind(TypedDict, total=False):
        """Mounts `source` of this machine at `target`. With `root`, `source` must be inside it after resolving links.

        `link`: creates the same symbolic link instead of mounting its target. `optional`: may be absent. `data`: must be usable
        by the task's uid before it starts.
        """

        source: str
        target: str
        read_only: bool
        root: str
        link: bool
        optional: bool
        data: bool


CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
# The namespaces that `build` makes.
OWN = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP

_MS_RDONLY = 1
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_MOUNT_SETATTR = 442
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38

# The name of the tasks' user.
USER = "elearn"

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Files of /etc that programs read (names, certificates, libraries, fonts), and the number of processors. Everything else there
# is private to the machine. A GPU adds more of /sys (gpus.py). Files are copied, because a mount for each would cost every task
# more.
_SETTINGS = (
    "/etc/bash.bashrc", "/etc/gai.conf", "/etc/group", "/etc/host.conf", "/etc/hosts", "/etc/inputrc",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/locale.alias", "/etc/locale.conf", "/etc/localtime", "/etc/mime.types",
    "/etc/mtab", "/etc/networks", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/profile",
    "/etc/protocols", "/etc/resolv.conf", "/etc/rpc", "/etc/services", "/etc/ssl/openssl.cnf", "/etc/timezone",
)  # fmt: skip
# Files that get a line for the task.
_ADDED_TO = ("/etc/group", "/etc/hosts", "/etc/passwd")
_SETTING_FOLDERS = (
    "/etc/alternatives", "/etc/crypto-policies", "/etc/fonts", "/etc/OpenCL", "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs", "/etc/ssl/certs", "/sys/devices/system/cpu", "/sys/devices/system/node",
    "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
# Files of /proc that reveal the machine and its users and nothing about the task: those that Docker hides, and some more.
# `subset=pid` would also hide cpuinfo, meminfo and stat, which TensorFlow, psutil and the JVM read.
HIDDEN = (
    "acpi", "asound", "cmdline", "interrupts", "kallsyms", "kcore", "key-users", "keys", "latency_stats", "sched_debug", "scsi",
    "timer_list", "timer_stats",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}

_libc = ctypes.CDLL(None, use_errno=True)


class SandboxError(Exception):
    """The sandbox could not be made. The text is a reason for people."""


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Calls mount(2)."""
    text = data.encode() if data else None
    name = kind.encode() if kind else None
    _check(
        _libc.mount(os.fsencode(source), os.fsencode(target), name, ctypes.c_ulong(flags), text), f"mount on {target}"
    )


def seal(target: str, flags: int, *, recursive: bool = True) -> None:
    """Adds mount attributes to a mount and all below it (mount_setattr(2), Linux 5.12)."""
    attributes = _MountAttr(attr_set=flags)
    _check(
        _libc.syscall(
            ctypes.c_long(_SYS_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        ),
        f"mount_setattr on {target}",
    )


def die_with_parent() -> None:
    """Makes the kernel kill the caller when its parent ends, and keeps processes of the same uid from tracing it."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def hide_arguments() -> None:
    """Erases the arguments of the calling process, which name folders of this machine."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, b"task", min(4, end - start))


def be_seen() -> None:
    """Lets processes of the same uid access the caller again after it changed its uid."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def setns(pidfd: int, flags: int) -> None:
    """Joins the namespaces `flags` of the process behind `pidfd` (Linux 5.8)."""
    _check(_libc.setns(pidfd, flags), "setns")


def unshare(flags: int = 0) -> None:
    """Makes new namespaces `flags` for the caller (CLONE_NEWPID: for its children), in a new user namespace unless it is root.

    Raises SandboxError with a sentence on what an administrator can change.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid != 0:
            _check(_libc.unshare(CLONE_NEWUSER), "unshare")
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        enter(flags)
    except OSError as error:
        raise SandboxError(forbidden(error)) from error


def enter(flags: int) -> None:
    """Makes new namespaces `flags` for the caller, which must have the right to."""
    if flags:
        _check(_libc.unshare(flags), "unshare")


def forbidden(error: OSError) -> str:
    """Returns why this machine cannot run tasks, and what would change that."""
    if os.geteuid() == 0:
        advice = "in a container, start it with --privileged"
    else:
        advice = (
            "set sysctl user.max_user_namespaces and user.max_net_namespaces above 0, kernel.unprivileged_userns_clone=1 and "
            "kernel.apparmor_restrict_unprivileged_userns=0, or run the portal as root; "
            "in a container, start it with --privileged"
        )
    return f"This machine does not let the portal isolate tasks in namespaces ({error.strerror}): {advice}."


def build(
    root: str,
    binds: Sequence[Bind],
    *,
    tmp: str | None,
    proc: bool,
    memory_mb: int = 16,
    uid: int | None = None,
    hostname: str = "sandbox",
) -> None:
    """Makes the new root in the folder `root`, with the mounts `binds`, and moves the calling process into it.

    `tmp`: the folder behind /tmp. `memory_mb`: the size of /dev/shm. `uid`: gets the name USER. `hostname`: resolves to
    127.0.0.1 inside. Raises SandboxError, after which the caller must exit.
    """
    step = "namespaces"
    try:
        _check(_libc.unshare(OWN), "unshare")
        _check(_libc.sethostname(hostname.encode(), len(hostname.encode())), "sethostname")
        mount("none", "/", None, _MS_REC | _MS_PRIVATE)
        mount("elearn", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=16m")
        if proc:
            os.mkdir(root + "/proc")
            mount("proc", root + "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError as error:
        raise SandboxError(forbidden(error)) from error
    try:
        for folder in SYSTEM_FOLDERS:
            step = folder
            _system(root, folder)
        for path in _SETTING_FOLDERS:
            step = path
            _bind(root, {"source": path, "target": path, "read_only": True, "optional": True})
        for path in _SETTINGS:
            step = path
            _copy(path, root + path)
        _add(root + "/etc/hosts", f"127.0.0.1 {hostname}\n")
        if uid is not None:
            # Programs look up their user: `whoami`, `git`, Python's getpass.
            _add(root + "/etc/passwd", f"{USER}:x:{uid}:{uid}::/tmp:/bin/bash\n")
            _add(root + "/etc/group", f"{USER}:x:{uid}:\n")
        step = "/etc/resolv.conf"
        _resolver(root)
        step = "/dev"
        _devices(root, memory_mb)
        if proc:
            step = "/proc"
            _hide(root)
        for name in ("run", "var", "tmp", "elearn", "elearn/input"):
            os.mkdir(f"{root}/{name}")
        os.symlink("/tmp", root + "/var/tmp")  # noqa: S108  the task's own /tmp
        if tmp is not None:
            _bind(root, {"source": tmp, "target": "/tmp"})  # noqa: S108
        for bind in sorted(binds, key=lambda item: item["target"].count("/")):
            step = bind["source"]
            _bind(root, bind)
        step = "the new root"
        seal(root, _ATTR_RDONLY, recursive=False)
        _pivot(root)
    except OSError as error:
        raise SandboxError(f"{step} cannot be given to the task: {error.strerror}.") from error


def _system(root: str, folder: str) -> None:
    if os.path.islink(folder):
        os.symlink(os.readlink(folder), root + folder)
    elif os.path.isdir(folder):
        os.mkdir(root + folder)
        mount(folder, root + folder, None, _MS_BIND | _MS_REC)
        seal(root + folder, _ATTR_RDONLY | _ATTR_NOSUID)


def _copy(path: str, target: str) -> None:
    """Copies a link as a link (unless a line is added), and a file if all users may read it. Skips missing ones."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path) and path not in _ADDED_TO:
        os.symlink(os.readlink(path), target)
    elif os.path.isfile(path) and os.stat(path).st_mode & stat.S_IROTH:
        with open(path, "rb") as source, open(target, "xb") as copy:
            copy.write(source.read())


def _add(path: str, line: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        file.write(line)


def _hide(root: str) -> None:
    """Hides the files in HIDDEN of /proc. Requires the devices."""
    for name in HIDDEN:
        path = f"{root}/proc/{name}"
        if os.path.isdir(path):
            mount("hidden", path, "tmpfs", _MS_RDONLY)
        elif os.path.exists(path):
            mount(root + "/dev/null", path, None, _MS_BIND)


def _resolver(root: str) -> None:
    """Provides resolv.conf, which systemd-resolved keeps below /run, invisible to tasks."""
    real = os.path.realpath("/etc/resolv.conf")
    if os.path.isfile(real) and not real.startswith(("/etc/", "/usr/")):
        _bind(root, {"source": real, "target": real, "read_only": True})


def _devices(root: str, memory_mb: int) -> None:
    os.mkdir(root + "/dev")
    for name in _DEVICES:
        _bind(root, {"source": f"/dev/{name}", "target": f"/dev/{name}", "optional": True})
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"{root}/dev/{name}")
    os.mkdir(root + "/dev/pts")
    mount("devpts", root + "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    os.mkdir(root + "/dev/shm")  # noqa: S108  a fresh one
    # Limits the number of files, because even empty ones cost memory.
    size = f"mode=1777,size={memory_mb}m,nr_inodes={memory_mb * 64}"
    mount("shm", root + "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, size)  # noqa: S108


def _bind(root: str, bind: Bind) -> None:
    source, target = bind["source"], root + bind["target"]
    if bind.get("link"):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.lexists(target):
            os.symlink(os.readlink(source), target)
        return
    if bind.get("optional") and not os.path.exists(source):
        return
    handle = open_inside(bind["root"], source) if "root" in bind else os.open(source, os.O_PATH | os.O_CLOEXEC)
    try:
        path = f"/proc/self/fd/{handle}"
        if os.path.exists(target) and os.path.samefile(path, target):
            return
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if not os.path.exists(target):
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(path, target, None, _MS_BIND | _MS_REC)
    finally:
        os.close(handle)
    if not bind["target"].startswith("/dev/"):
        seal(target, _ATTR_NOSUID | _ATTR_NODEV | (_ATTR_RDONLY if bind.get("read_only") else 0))


def open_inside(root: str, path: str, *, create_for: int | None = None) -> int:
    """Returns a handle (O_PATH) of the folder `path` after resolving links; raises PermissionError if it is not inside `root`.

    With `create_for` creates missing folders for this uid (-1: for the caller). Every step starts from a handle verified as
    inside, so no link can be slipped in.
    """
    top = os.path.realpath(root)
    try:
        return _verified(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), path, top)
    except FileNotFoundError:
        if create_for is None or os.path.normpath(path) == os.path.normpath(root):
            raise
    parent = open_inside(root, os.path.dirname(os.path.normpath(path)), create_for=create_for)
    try:
        name = os.path.basename(os.path.normpath(path))
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
            if create_for >= 0:
                os.chown(name, create_for, create_for, dir_fd=parent, follow_symlinks=False)
        except FileExistsError:
            pass
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return _verified(os.open(name, flags, dir_fd=parent), path, top)
    finally:
        os.close(parent)


def _verified(handle: int, path: str, top: str) -> int:
    if not inside(os.readlink(f"/proc/self/fd/{handle}"), top):
        os.close(handle)
        raise PermissionError(errno.EACCES, f"it leads out of {top}", path)
    return handle


def inside(path: str, root: str) -> bool:
    """Returns whether the resolved `path` is `root` or below it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def _pivot(root: str) -> None:
    os.chdir(root)
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(ctypes.c_long(number), ctypes.c_char_p(b"."), ctypes.c_char_p(b".")), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def drop_privileges(uid: int | None) -> None:
    """Drops all capabilities and ways to regain them, and blocks dangerous system calls. With `uid` (as root) the caller becomes
    this uid and gid for good."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 and ctypes.get_errno() == errno.EINVAL:
            break
    if uid is not None:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            raise SandboxError(f"The task cannot become uid {uid}: {error.strerror}.") from error
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    seccomp.install()


def python_binds(environment: str) -> list[Bind]:
    """Returns the mounts of a virtual environment: itself and its interpreter, under every name on the chain of links."""
    binds: list[Bind] = [{"source": environment, "target": environment, "read_only": True}]
    link = os.path.join(environment, "bin", "python")
    for _ in range(16):
        if not os.path.islink(link):
            break
        link = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
        if os.path.islink(link):
            binds.append({"source": link, "target": link, "link": True})
    prefixes = {os.path.dirname(os.path.dirname(link)), os.path.dirname(os.path.dirname(os.path.realpath(link)))}
    prefixes |= {os.path.dirname(_home(environment))} - {""}
    for prefix in sorted(prefixes):
        # A prefix such as /home/me contains more than an interpreter, so only its usual folders are mounted.
        for name in ("bin", "lib", "lib64", "libexec", "include", "share"):
            folder = os.path.join(prefix, name)
            if os.path.isdir(folder) and not folder.startswith(("/usr/", "/bin", "/lib")):
                binds.append({"source": folder, "target": folder, "read_only": True})
    return binds


def _home(environment: str) -> str:
    try:
        with open(os.path.join(environment, "pyvenv.cfg")) as file:
            for line in file:
                name, _, value = line.partition("=")
                if name.strip() == "home":
                    return value.strip()
    except FileNotFoundError:
        pass
    return ""
