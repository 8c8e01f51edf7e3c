"""Sends frames by an interface, and says which come in by it: a frame a line, in hexadecimal.

Before a frame may be a virtio-net header, and a blank: what is left undone in the frame. An
interface `tap:NAME` is a TAP device, which is read and written as a VMM without offloads does.

A line of standard input that is empty asks for what has come since the last one; the answer is
those frames, each on a line, and an empty one. The line `listen` opens the interface, also anew
when another one has its name by now; the answer is `ready`. tests/src/packet_peer.rs drives it
through pipes.
"""

import fcntl
import os
import socket
import struct
import sys

LONGEST = 1 << 17
ETH_P_ALL = 3
OUTGOING = 4  # PACKET_OUTGOING of linux/if_packet.h
SOL_PACKET = 263
PACKET_AUXDATA = 8
PACKET_VNET_HDR = 15
VLAN_VALID = 1 << 4  # TP_STATUS_VLAN_VALID
TUNSETIFF = 0x400454CA
TAP_FLAGS = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
VNET_HEADER = 10
SO_RCVBUFFORCE = 33


class Link:
    """An interface, by packet sockets."""

    def __init__(self, name):
        self.peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.peer.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        self.peer.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.peer.bind((name, ETH_P_ALL))
        self.peer.setblocking(False)
        self.undone = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.undone.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self.undone.bind((name, 0))

    def send(self, frame):
        self.peer.send(frame)

    def send_undone(self, header, frame):
        self.undone.send(header + frame)

    def come(self):
        while True:
            try:
                frame, beside, _, (_, _, kind, *_) = self.peer.recvmsg(LONGEST, 64)
            except BlockingIOError:
                return
            if kind != OUTGOING:
                yield tagged(frame, beside)


class Tap:
    """A TAP device."""

    def __init__(self, name):
        self.device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.device, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_FLAGS))

    def send(self, frame):
        self.send_undone(bytes(VNET_HEADER), frame)

    def send_undone(self, header, frame):
        os.write(self.device, header + frame)

    def come(self):
        while True:
            try:
                yield os.read(self.device, LONGEST)[VNET_HEADER:]
            except BlockingIOError:
                return


def listen():
    name = sys.argv[1]
    return Tap(name[4:]) if name.startswith("tap:") else Link(name)


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
    elif " " in line:
        peer.send_undone(*map(bytes.fromhex, line.split()))
    elif line.strip():
        peer.send(bytes.fromhex(line))
    else:
        answer = "".join(frame.hex() + "\n" for frame in peer.come())
        print(answer, flush=True)
