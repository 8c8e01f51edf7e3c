"""usage: hang_thread.py PID NAME SECONDS [CALL]

Stops one thread of a process, found by its name, as if it hung: the others go on (ptrace(2),
PTRACE_INTERRUPT of that thread alone). With the name of a system call it is the first thread of
that name, or one that such a thread starts, that makes the call: who waits for work does not
hang."""

import ctypes
import os
import signal
import sys

PTRACE_SYSCALL, PTRACE_SEIZE, PTRACE_INTERRUPT = 24, 0x4206, 0x4207
PTRACE_O_TRACESYSGOOD, PTRACE_O_TRACECLONE = 1, 8
WALL = 0x40000000  # waitpid(2), __WALL: threads too
# The signal of a stop at a system call.
AT_CALL = signal.SIGTRAP | 0x80
CALLS = {
    "x86_64": {"accept4": 288, "bind": 49, "recvfrom": 45},
    "aarch64": {"accept4": 242, "bind": 200, "recvfrom": 207},
}

pid, name, seconds = sys.argv[1:4]
call = CALLS[os.uname().machine][sys.argv[4]] if sys.argv[4:] else None
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def threads():
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm") as file:
            if file.read().strip() == name:
                yield int(thread)


def makes_call(thread):
    with open(f"/proc/{pid}/task/{thread}/syscall") as file:
        return file.read().split()[0] == str(call)


found = list(threads()) if call else list(threads())[:1]
if not found:
    sys.exit(f"process {pid} has no thread {name}")
options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE if call else None
for thread in found:
    for request, data in ((PTRACE_SEIZE, options), (PTRACE_INTERRUPT, None)):
        if libc.ptrace(request, thread, None, data) != 0:
            sys.exit(f"ptrace: {os.strerror(ctypes.get_errno())}")
print("watches" if call else "stopped", flush=True)
# With this process's end they go on.
signal.alarm(int(seconds))
hangs = False
# The threads' end is waited for here: before that nobody else sees the process's end.
while True:
    try:
        thread, status = os.waitpid(-1, WALL)
    except ChildProcessError:
        break
    if not os.WIFSTOPPED(status) or call is None:
        continue
    stopped_by = os.WSTOPSIG(status)
    if not hangs and stopped_by == AT_CALL and makes_call(thread):
        hangs = True
        continue
    # Not a stop of ptrace's own.
    is_signal = stopped_by != AT_CALL and status >> 16 == 0
    libc.ptrace(PTRACE_SYSCALL, thread, None, stopped_by if is_signal else None)
