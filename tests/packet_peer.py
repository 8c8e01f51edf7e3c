"""Sends frames by an interface, and says which come in by it: a frame a line, in hexadecimal.

A line of standard input that is empty asks for what has come since the last one; the answer is
those frames, each on a line, and an empty one. The line `listen` opens the interface, also anew
when another one has its name by now; the answer is `ready`. tests/src/packet_peer.rs drives it
through pipes.
"""

import socket
import struct
import sys

LONGEST = 1 << 17
ETH_P_ALL = 3
OUTGOING = 4  # PACKET_OUTGOING of linux/if_packet.h
SOL_PACKET = 263
PACKET_AUXDATA = 8
VLAN_VALID = 1 << 4  # TP_STATUS_VLAN_VALID
SO_RCVBUFFORCE = 33


def listen():
    peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    peer.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
    peer.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    peer.bind((sys.argv[1], ETH_P_ALL))
    peer.setblocking(False)
    return peer


def come(peer):
    while True:
        try:
            frame, beside, _, (_, _, kind, *_) = peer.recvmsg(LONGEST, 64)
        except BlockingIOError:
            return
        if kind != OUTGOING:
            yield tagged(frame, beside)


def tagged(frame, beside):
    """The kernel has taken a VLAN tag off, and says it beside the frame."""
    for level, kind, data in beside:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", data[:20])
            if status & VLAN_VALID:
                return frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
    return frame


peer = None
for line in sys.stdin:
    if line == "listen\n":
        peer = listen()
        print("ready", flush=True)
    elif line.strip():
        peer.send(bytes.fromhex(line))
    else:
        answer = "".join(frame.hex() + "\n" for frame in come(peer))
        print(answer, flush=True)
