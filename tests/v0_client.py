"""An API v0 client that shares nothing with ours: libzmq for the transport, protobuf's wire format
written by hand from the contract's tables, AES from Python's cryptography package. tests/v0.rs
starts a daemon and runs this.

usage: v0_client.py ENDPOINT SOCKET_DIR [KEYFILE]
"""

import base64
import hashlib
import os
import sys

import zmq
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

TIMEOUT_MS = 5000
# What the original's last release sends and answers.
REVISION = 6
REJECTED, PARSE_ERROR, VERSION_NOT_MANAGED = 4, 0, 2


# protobuf's wire format


def varint(value):
    value &= (1 << 64) - 1  # negative numbers are ten bytes long
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(*pairs):
    return b"".join(field(number, value) for number, value in pairs)


def parse(data):
    """All fields in order: [(number, int or bytes)]."""
    out, at = [], 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            out.append((key >> 3, number()))
        else:
            assert key & 7 == 2, f"wire type {key & 7} in {data.hex()}"
            length = number()
            assert at + length <= len(data), f"cut short: {data.hex()}"
            out.append((key >> 3, data[at : at + length]))
            at += length
    return out


def all_of(data, number):
    return [value for n, value in parse(data) if n == number]


def one(data, number):
    values = all_of(data, number)
    assert len(values) == 1, f"field {number} is there {len(values)} times in {data.hex()}"
    return values[0]


# the envelope


class Client:
    def __init__(self, endpoint, key=None):
        self.socket = zmq.Context.instance().socket(zmq.REQ)
        self.socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)
        self.key = key

    def raw(self, data):
        self.socket.send(data)
        return self.socket.recv()

    def messages(self, *requests):
        """Sends requests in one frame, and gives the responses."""
        sent = b"".join(
            field(1, fields((1, REVISION), (3, fields((1, request), (3, f"id-{i}")))))
            for i, request in enumerate(requests)
        )
        answer = self.raw(encrypt(self.key, sent) if self.key else sent)
        if self.key:
            answer = decrypt(self.key, answer)
        answers = all_of(answer, 1)
        assert len(answers) == len(requests), f"{len(answers)} answers to {len(requests)} requests"
        responses = []
        for i, message in enumerate(answers):
            assert one(message, 1) == REVISION, "the revision of the last release"
            assert not all_of(message, 2), f"an error of the envelope: {message.hex()}"
            body = one(message, 3)
            assert one(body, 3) == f"id-{i}".encode(), "message_id comes back"
            responses.append(one(body, 2))
        return responses

    def ok(self, *request):
        (response,) = self.messages(fields(request))
        status = one(response, 1)
        assert one(status, 1) == 1, f"{request} was refused: {status}"
        return response

    def refused(self, *request):
        (response,) = self.messages(fields(request))
        status = one(response, 1)
        assert one(status, 1) == 0, f"{request} was not refused"
        assert one(one(status, 2), 1), "with a description"


def encrypt(key, clear):
    clear = hashlib.sha512(clear).digest() + clear
    pad = 16 - len(clear) % 16
    iv = os.urandom(16)
    # The cipher runs backwards: who sends decrypts, who receives encrypts.
    aes = Cipher(algorithms.AES(key), modes.CBC(iv)).decryptor()
    return field(2, field(2, iv + aes.update(clear + bytes([pad]) * pad) + aes.finalize()))


def decrypt(key, data):
    data = one(one(data, 2), 2)
    aes = Cipher(algorithms.AES(key), modes.CBC(data[:16])).encryptor()
    clear = aes.update(data[16:]) + aes.finalize()
    clear = clear[: -clear[-1]]
    assert hashlib.sha512(clear[64:]).digest() == clear[:64], "the digest is right"
    return clear[64:]


def envelope_error(data):
    """The code of an error of the envelope, in one Message of a Messages."""
    return one(one(one(data, 1), 2), 1)


# sessions


# v0-contract.md 29, 31, 33, 34, 37, 38 and 51.
def nics(client, socket_dir):
    nic = fields(
        (1, "v1"),
        (2, "52:54:00:12:34:01"),
        (3, 1337),
        (4, "42.0.0.1"),
        (4, "2001:DB8:0::1"),
        (5, "web"),
        (5, "web"),
    )
    for _ in range(2):  # adding twice is adding once
        assert one(one(client.ok(1, nic), 2), 1) == f"{socket_dir}/qemu-vhost-v1".encode()
    client.ok(1, fields((1, "a0"), (2, "52:54:00:12:34:02"), (3, 1337), (4, "42.0.0.2")))
    assert all_of(client.ok(4, True), 3) == [b"a0", b"v1"], "ids, sorted"
    details = one(client.ok(5, "v1"), 4)
    assert one(details, 2) == b"52:54:00:12:34:01" and one(details, 3) == 1337
    assert all_of(details, 4) == [b"42.0.0.1", b"2001:db8::1"], all_of(details, 4)
    assert all_of(details, 5) == [b"web"], "kept once"
    assert all_of(details, 6) in ([], [0]), "anti-spoofing is off by default"
    assert one(details, 10) == f"{socket_dir}/qemu-vhost-v1".encode()
    assert len(all_of(client.ok(5, ""), 4)) == 2, "all"
    client.refused(5, "nobody")
    client.ok(2, fields((1, "v1"), (2, True), (3, "42.0.0.9"), (4, "")))
    details = one(client.ok(5, "v1"), 4)
    assert all_of(details, 4) == [b"42.0.0.9"] and all_of(details, 5) == [] and one(details, 6) == 1
    stats = one(client.ok(7, "v1"), 6)
    assert one(stats, 1) == 0 and one(stats, 2) == 0
    for bad in ["52:54:00:12:34", "52-54-00-12-34-01", "zz:54:00:12:34:01"]:
        client.refused(1, fields((1, "bad"), (2, bad), (3, 1)))
    client.refused(1, fields((1, "bad"), (2, "52:54:00:12:34:07"), (3, 1 << 24)))
    for _ in range(2):
        client.ok(3, "a0")
    assert all_of(client.ok(4, True), 3) == [b"v1"], "the refused ones changed nothing"


# v0-contract.md 40, 41, 42, 44 and 45.
def groups(client):
    def rule(port, mask=24, **more):
        cidr = fields((1, "42.0.3.0"), (2, mask))
        return fields(
            (1, 0), (2, more.get("protocol", 6)), (3, port), (4, more.get("end", port)), (5, cidr)
        )

    client.ok(11, fields((1, "mysg"), (2, rule(22))))
    client.ok(11, fields((1, "mysg"), (2, rule(22))))
    client.ok(11, fields((1, "mysg"), (2, fields((1, 1), (2, -1), (6, "others")))))
    rules = all_of(client.ok(13, "mysg"), 8)
    assert len(rules) == 2, "a rule given twice is one"
    first = dict(parse(rules[0]))
    assert first[1] == 0 and first[2] == 6 and first[3] == 22 and first[4] == 22, first
    assert parse(first[5]) == [(1, b"42.0.3.0"), (2, 24)], first[5]
    second = dict(parse(rules[1]))
    assert second[1] == 1 and second[2] == (1 << 64) - 1 and second[6] == b"others", second
    assert 3 not in second and 4 not in second, "ports are given back for TCP and UDP alone"
    client.refused(11, fields((1, "mysg"), (2, rule(9, mask=33))))
    client.refused(11, fields((1, "mysg"), (2, rule(9, end=8))))
    peer = field(5, fields((1, "42.0.3.0"), (2, 24)))
    client.refused(11, fields((1, "mysg"), (2, fields((1, 0), (2, 6)) + peer)))  # no ports
    client.refused(11, fields((1, "mysg"), (2, fields((1, 0), (2, -1)))))  # nobody at the other end
    client.refused(11, fields((1, "mysg"), (2, rule(9) + field(6, "others"))))  # two peers
    client.ok(14, fields((1, "mysg"), (2, "2001:DB8::7")))
    client.ok(14, fields((1, "mysg"), (2, "42.0.0.5")))
    assert sorted(all_of(client.ok(16, "mysg"), 9)) == [b"2001:db8::7", b"42.0.0.5"]
    client.ok(15, fields((1, "mysg"), (2, "42.0.0.5")))
    client.ok(12, fields((1, "mysg"), (2, rule(22))))
    group = one(client.ok(20, "mysg"), 11)
    assert (
        one(group, 1) == b"mysg"
        and all_of(group, 2) == [b"2001:db8::7"]
        and len(all_of(group, 3)) == 1
    )
    for unknown in (13, 16, 20):
        client.refused(unknown, "nobody")
    client.ok(8, fields((1, "a"), (2, "10.0.0.1"), (3, rule(80))))
    assert all_of(client.ok(10, True), 7) == [b"a", b"mysg"]
    for _ in range(2):
        client.ok(9, "a")


# v0-contract.md 6.
def several_at_once(client):
    first, second, third = client.messages(field(4, True), field(5, "nobody"), field(10, True))
    assert [one(one(r, 1), 1) for r in (first, second, third)] == [
        1,
        0,
        1,
    ], "answered one for one, in order"


# v0-contract.md 47 and 49.
def status(client):
    answer = one(client.ok(17, True), 10)
    assert 0 < one(answer, 1) <= one(answer, 2) and one(answer, 3) > 0
    assert b"graph" in one(answer, 4)
    client.ok(19, field(1, "debug"))
    client.refused(19, field(1, "loud"))


# v0-contract.md 8.
def recorded(client):
    """What the original's client really sent: each frame is taken and answered. (Not the TAP, and
    not the end.)"""
    folder = os.path.join(os.path.dirname(__file__), "../crates/api/tests/v0_vectors")
    kind = "aes" if client.key else "clear"
    names = [
        "nic_add", "nic_list", "nic_details", "nic_stats", "nic_update", "sg_rule_add",
        "sg_rule_add_members",
    ]
    for name in [*names, "sg_list", "sg_member_add", "status", "nic_del"]:
        with open(os.path.join(folder, f"{name}.{kind}.hex"), encoding="ascii") as file:
            answer = client.raw(bytes.fromhex(file.read().strip()))
        if client.key:
            answer = decrypt(client.key, answer)
        body = one(one(answer, 1), 3)
        assert all_of(body, 3) == [], "no message_id, as it sent none"
        assert one(one(one(body, 2), 1), 1) == 1, f"{name}: {body.hex()}"
    for group in ("web", "users"):
        client.ok(9, group)


# v0-contract.md 13, 14, 43 and 50.
def as_written(client):
    """What the original took and gave back; the whole list is in
    crates/daemon/tests/golden/original.txt."""
    for nic in ("one", "two"):  # one MAC twice
        client.ok(1, fields((1, nic), (2, "52:54:00:AB:cd:01"), (3, 7), (4, "0.0.0.0")))
    details = one(client.ok(5, "two"), 4)
    assert one(details, 2) == b"52:54:00:AB:cd:01" and all_of(details, 4) == [b"0.0.0.0"]
    cidr = fields((1, "10.1.2.3"), (2, 8))
    client.ok(
        8,
        fields((1, "g"), (2, "10.0.0.9"), (2, "10.0.0.1"), (3, fields((1, 0), (2, -1), (5, cidr)))),
    )
    group = one(client.ok(20, "g"), 11)
    assert all_of(group, 2) == [b"10.0.0.9", b"10.0.0.1"] and one(one(group, 3), 5) == cidr
    (first,) = client.messages(field(4, True) + field(9, "g"))  # the first of two counts
    assert all_of(first, 3) == [b"one", b"two"]
    assert one(client.ok(20, "g"), 11) == group
    (nothing,) = client.messages(b"")
    assert one(one(nothing, 1), 1) == 0, "a request for nothing"
    for nic in ("one", "two"):
        client.ok(3, nic)
    client.ok(9, "g")


# v0-contract.md 9, 10 and 11.
def broken(client):
    bare = client.raw(b"\xff\xff\xff")
    assert (
        one(bare, 1) == REVISION and one(one(bare, 2), 1) == PARSE_ERROR
    ), "bytes that are nothing: a bare Message"
    assert envelope_error(client.raw(b"")) == REJECTED
    assert envelope_error(client.raw(field(1, field(1, 0)))) == VERSION_NOT_MANAGED


def main():
    endpoint, socket_dir = sys.argv[1:3]
    if len(sys.argv) > 3:
        with open(sys.argv[3], encoding="ascii") as file:
            key = base64.b64decode(file.read())
        clear, client = Client(endpoint), Client(endpoint, key)
        assert (
            envelope_error(clear.raw(field(1, fields((1, 0), (3, field(1, field(4, True)))))))
            == REJECTED
        )
        wrong = Client(endpoint, bytes(32))
        answer = wrong.raw(
            encrypt(bytes(32), field(1, fields((1, 0), (3, field(1, field(4, True))))))
        )
        assert (
            one(one(one(answer, 2), 1), 1) == 1
        ), f"a wrong key: Encrypted.error REJECTED: {answer.hex()}"
    else:
        client = Client(endpoint)
        assert (
            envelope_error(client.raw(encrypt(bytes(32), b""))) == REJECTED
        ), "encrypted, and no key here"
        broken(client)
    recorded(client)
    as_written(client)
    nics(client, socket_dir)
    groups(client)
    several_at_once(client)
    status(client)
    client.ok(18, True)
    print("ok")


main()
