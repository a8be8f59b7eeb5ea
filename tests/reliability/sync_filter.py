"""Starts a program whose syncs another process carries out: ``python sync_filter.py SOCKET PROGRAM ARGUMENT…``.

A seccomp filter holds each fsync, fdatasync and truncate of the program and its children until the process that listens
at SOCKET has answered; everything else goes to the kernel untouched. It needs no root and no compiler, and works with
any program, a static one too. It imports nothing of the project, so it starts at once.
"""

import array
import ctypes
import os
import platform
import socket
import struct
import subprocess
import sys

MACHINES = {
    # The kernel's number of the machine, and its system calls.
    "x86_64": (0xC000003E, {"seccomp": 317, "fsync": 74, "fdatasync": 75, "truncate": 76, "ftruncate": 77}),
    "aarch64": (0xC00000B7, {"seccomp": 277, "fsync": 82, "fdatasync": 83, "truncate": 45, "ftruncate": 46}),
}
HELD = ("fsync", "fdatasync", "truncate", "ftruncate")
_NO_NEW_PRIVILEGES = 38
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ASK_LISTENER = 0x7FFF0000, 0x7FC00000
_AT_NUMBER, _AT_MACHINE = 0, 4


def unsupported() -> str:
    """Why this machine cannot do that, and what can; empty if it can."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return f"{platform.system()} on {platform.machine()}: power cuts need Linux on {' or '.join(MACHINES)}"
    if tuple(map(int, platform.release().split("-")[0].split(".")[:2])) < (5, 5):
        return f"Linux {platform.release()}: power cuts need 5.5 or later, which lets a process answer for the kernel"
    tried = subprocess.run([sys.executable, "-IS", __file__], capture_output=True, text=True, check=False)
    return tried.stderr.strip().rpartition("\n")[2]


def install() -> int:
    """Puts the filter on this process for good. Returns the descriptor to listen at. Raises OSError."""
    machine, numbers = MACHINES[platform.machine()]
    held = [numbers[name] for name in HELD]
    allow = len(held) + 1
    code = [(_LOAD, 0, 0, _AT_MACHINE), (_JUMP_IF_EQUAL, 0, allow, machine), (_LOAD, 0, 0, _AT_NUMBER)]
    code += [(_JUMP_IF_EQUAL, len(held) - n, 0, number) for n, number in enumerate(held)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK_LISTENER)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    header = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    listener: int = libc.syscall(numbers["seccomp"], _SET_MODE_FILTER, _NEW_LISTENER, header)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp with a listener is not allowed here (a container's own filter?)")
    return listener


def main() -> None:
    """Hands the listener over and becomes the program; without arguments it ends when the filter is installed."""
    listener = install()
    if len(sys.argv) == 1:
        return
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(sys.argv[1])
        channel.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
    os.close(listener)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
