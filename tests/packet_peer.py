"""Sends frames by an interface, and says which come in by it: a frame a line, in hexadecimal.

A line of standard input that is empty asks for what has come since the last one; the answer is
those frames, each on a line, and an empty one. tests/kernel_flows.rs drives it through pipes.
"""

import socket
import sys

LONGEST = 1 << 17
OUTGOING = 4  # PACKET_OUTGOING of linux/if_packet.h

peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
peer.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
peer.bind((sys.argv[1], 3))
peer.setblocking(False)


def come():
    while True:
        try:
            frame, (_, _, kind, *_) = peer.recvfrom(LONGEST)
        except BlockingIOError:
            return
        if kind != OUTGOING:
            yield frame


print("ready", flush=True)
for line in sys.stdin:
    if line.strip():
        peer.send(bytes.fromhex(line))
    else:
        answer = "".join(frame.hex() + "\n" for frame in come())
        print(answer, flush=True)
