"""The seccomp filter of tasks: blocks system calls that programs do not need and that have broken many sandboxes.

The list matches what Docker's and containerd's default profiles deny to a container without capabilities: new namespaces,
mounts, modules, keys, BPF, io_uring, file handles, clocks. Newer system calls than this list knows return ENOSYS. So does
clone3, whose flags are behind a pointer; libraries then use clone. VM sockets are denied, because they reach the host of a
virtual machine past every network namespace. ptrace is allowed, because a task sees only its own processes. The kernel's ciphers
(AF_ALG) are denied: programs bring their own, and they expose much of the kernel. Netlink is allowed, because programs list
their network interfaces by it (getifaddrs). The filter is inherited and cannot be removed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

# Number on x86_64, number on aarch64; -1: absent there.
FORBIDDEN = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, -1),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, -1),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, -1),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
# The newest system call for tasks (mseal, Linux 6.10); both architectures number new ones alike.
NEWEST = 462
CLONE, CLONE3, SOCKET = (56, 220), 435, (41, 198)
AF_ALG, AF_VSOCK = 38, 40
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06  # classic BPF
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # in struct seccomp_data; the lower half of the argument
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def program(machine: str) -> bytes:
    """Returns the filter in classic BPF; each instruction has a code, the jumps when true and when false, and a value."""
    column, architecture = MACHINES[machine]
    forbidden = sorted(numbers[column] for numbers in FORBIDDEN.values() if numbers[column] >= 0)
    # The results follow the tests in this order; jumps are relative to the next instruction, negative ones skip tests.
    ends = (_ERROR | errno.ENOSYS, _ERROR | errno.EPERM, _ALLOW)
    tests: list[tuple[int, int | None, int | None, int]] = [
        (_LOAD, None, None, _ARCHITECTURE),
        (_EQUAL, None, 0, architecture),  # programs of another architecture (32 bit) number system calls differently
        (_LOAD, None, None, _NUMBER),
        (_GREATER, 0, None, NEWEST),  # also denies the x32 calls of x86_64, from 1 << 30
        (_EQUAL, 0, None, CLONE3),
        *((_EQUAL, 1, None, number) for number in forbidden),
        (_EQUAL, None, -3, SOCKET[column]),
        (_LOAD, None, None, _FIRST_ARGUMENT),
        (_EQUAL, 1, None, AF_ALG),
        (_EQUAL, 1, 2, AF_VSOCK),
        (_EQUAL, None, 2, CLONE[column]),
        (_LOAD, None, None, _FIRST_ARGUMENT),
        (_ANY_BIT, 1, 2, NEW_NAMESPACES),
    ]
    lines = []
    for place, (code, true, false, value) in enumerate(tests):
        to_ends = len(tests) - place - 1
        steps = (0 if end is None else -end if end < 0 else to_ends + end for end in (true, false))
        lines.append(struct.pack("=HBBI", code, *steps, value))
    return b"".join(lines + [struct.pack("=HBBI", _RETURN, 0, 0, end) for end in ends])


def install() -> None:
    """Installs the filter in the calling process, which must have no_new_privs, and all that it starts. Raises OSError."""
    text = program(os.uname().machine)
    described = _Program(len(text) // 8, text)
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(described), 0, 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
