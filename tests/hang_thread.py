"""usage: hang_thread.py PID NAME SECONDS

Stops one thread of a process, found by its name, as if it hung: the others go on (ptrace(2),
PTRACE_INTERRUPT of that thread alone)."""

import ctypes
import os
import sys
import time

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000  # waitpid(2), __WALL: threads too

pid, name, seconds = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
for thread in os.listdir(f"/proc/{pid}/task"):
    with open(f"/proc/{pid}/task/{thread}/comm") as file:
        if file.read().strip() == name:
            for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
                if libc.ptrace(request, int(thread), None, None) != 0:
                    sys.exit(f"ptrace: {os.strerror(ctypes.get_errno())}")
            break
else:
    sys.exit(f"process {pid} has no thread {name}")
print("stopped", flush=True)
# The thread's end is waited for here: before that nobody else sees the process's end.
end = time.monotonic() + float(seconds)
while time.monotonic() < end:
    found, status = os.waitpid(int(thread), os.WNOHANG | WALL)
    if found and not os.WIFSTOPPED(status):
        break
    time.sleep(0.01)
