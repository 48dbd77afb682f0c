"""Which system calls a program in a box is refused, as a filter for the kernel (seccomp).

Namespaces and missing capabilities already refuse most of it. The filter takes away what they do not: memory
that no limit counts, sockets that no network namespace holds, and the parts of the kernel that nobody needs
here and that had most of its faults.
"""

import errno
import struct

_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1, _ARGUMENT_2 = 0, 4, 16, 24, 32
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
"""Numbers from here on are the calls of another interface of x86_64."""

_CLONE_NEW = 0x7E020000
"""Flags of clone that ask for a namespace."""
_FAMILIES = (1, 2, 10)
"""Sockets that may be had: AF_UNIX, AF_INET, AF_INET6. AF_VSOCK would reach the host of a virtual machine."""
_AF_NETLINK, _NETLINK_ROUTE = 16, 0
_TERMINAL_INPUT = (0x5412, 0x541C)
"""ioctl TIOCSTI and TIOCLINUX: to type on somebody's terminal."""

# Name: number on x86_64 and on aarch64; None where there is no such call.
_REFUSED: dict[str, tuple[int, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # memory that no limit counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # parts of the kernel that had most faults
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "modify_ldt": (154, None),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # the machine
    "syslog": (103, 116),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "iopl": (172, None),
    "ioperm": (173, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "vhangup": (153, 58),
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_SOCKET = {"x86_64": 41, "aarch64": 198}
_IOCTL = {"x86_64": 16, "aarch64": 29}

MACHINES = tuple(_AUDIT)
"""Processors for which there is a filter."""


def filter_program(machine: str) -> bytes:
    """The filter as the kernel reads it, for one kind of processor."""
    column = MACHINES.index(machine)
    refused = sorted(number for row in _REFUSED.values() if (number := row[column]) is not None)
    lines = [
        _line(_LOAD, _ARCHITECTURE),
        _line(_EQUAL, _AUDIT[machine], skip_if_true=1),
        _refuse(errno.EPERM),
        _line(_LOAD, _NUMBER),
        *_when(_AT_LEAST, _X32_BIT, [_refuse(errno.EPERM)]),
        # Its flags lie in memory, where a filter cannot look: libraries then use clone.
        *_when(_EQUAL, _CLONE3, [_refuse(errno.ENOSYS)]),
        *_when(_EQUAL, _CLONE[machine], _clone()),
        *_when(_EQUAL, _SOCKET[machine], _socket()),
        *_when(_EQUAL, _IOCTL[machine], _ioctl()),
    ]
    for number in refused:
        lines += _when(_EQUAL, number, [_refuse(errno.EPERM)])
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _clone() -> list[bytes]:
    return [_line(_LOAD, _ARGUMENT_0), *_when(_ANY_BIT, _CLONE_NEW, [_refuse(errno.EPERM)]), _allow()]


def _socket() -> list[bytes]:
    known = [line for family in _FAMILIES for line in _when(_EQUAL, family, [_allow()])]
    netlink = [_line(_LOAD, _ARGUMENT_2), *_when(_EQUAL, _NETLINK_ROUTE, [_allow()]), _refuse(errno.EPERM)]
    # Name lookups ask for routes.
    return [
        _line(_LOAD, _ARGUMENT_0),
        *known,
        *_when(_EQUAL, _AF_NETLINK, netlink),
        _refuse(errno.EAFNOSUPPORT),
    ]


def _ioctl() -> list[bytes]:
    typed = [line for code in _TERMINAL_INPUT for line in _when(_EQUAL, code, [_refuse(errno.EPERM)])]
    return [_line(_LOAD, _ARGUMENT_1), *typed, _allow()]


def _when(test: int, value: int, then: list[bytes]) -> list[bytes]:
    """Lines for the case that what was loaded passes a test against a value; they end in a return."""
    return [_line(test, value, skip_if_false=len(then)), *then]


def _line(code: int, value: int, *, skip_if_true: int = 0, skip_if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, skip_if_true, skip_if_false, value)


def _allow() -> bytes:
    return _line(_RETURN, _ALLOW)


def _refuse(number: int) -> bytes:
    return _line(_RETURN, _REFUSE | number)
