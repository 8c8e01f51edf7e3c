"""What health checks ask: HTTP and HTTPS, DNS over UDP and TCP, and a greeting, each written here
from its RFC, so that the peer of the daemon's libraries is not another copy of them.
tests/balancer/health.rs runs it on servers.

usage: health_servers.py CERTIFICATE KEY well|wrong ADDRESS

Well means: GET /healthz of shop.example.org is answered with 204 (8080, and 443 by TLS), the name
up.example.org with NOERROR (53), and a connection to port 7 with "hello". Wrong is a server that
listens and is ill: 500, SERVFAIL, "sorry".
"""

import asyncio
import ssl
import sys

HTTP, HTTPS, DNS, GREETING = 8080, 443, 53, 7
WELL = sys.argv[3] == "well"


async def http(reader, writer):
    """RFC 9112: the request line, fields, an empty line."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    asked_well = head[0] == "GET /healthz HTTP/1.1" and fields.get("host") == "shop.example.org"
    status = "500 Ill" if not WELL else "204 No Content" if asked_well else "404 Not Found"
    writer.write(f"HTTP/1.1 {status}\r\nconnection: close\r\n\r\n".encode())
    await writer.drain()
    writer.close()


def answer(query):
    """RFC 1035, section 4.1: the same message with QR set and a code, NOERROR or SERVFAIL."""
    well = WELL and b"\x02up\x07example\x03org\x00" in query
    return query[:2] + bytes([query[2] | 0x80, 0 if well else 2]) + query[4:]


async def dns_over_tcp(reader, writer):
    """RFC 1035, section 4.2.2: two bytes of length before each message."""
    length = int.from_bytes(await reader.readexactly(2), "big")
    said = answer(await reader.readexactly(length))
    writer.write(len(said).to_bytes(2, "big") + said)
    await writer.drain()
    writer.close()


class DnsOverUdp(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, query, client):
        self.transport.sendto(answer(query), client)


async def greet(_, writer):
    writer.write(b"hello\n" if WELL else b"sorry\n")
    await writer.drain()
    writer.close()


async def main():
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(sys.argv[1], sys.argv[2])
    anywhere = "0.0.0.0"
    await asyncio.start_server(http, anywhere, HTTP)
    await asyncio.start_server(http, anywhere, HTTPS, ssl=tls)
    await asyncio.start_server(dns_over_tcp, anywhere, DNS)
    await asyncio.start_server(greet, anywhere, GREETING)
    # A datagram's answer has to come from the address that was asked: the service's, which is
    # given.
    await asyncio.get_running_loop().create_datagram_endpoint(
        DnsOverUdp, local_addr=(sys.argv[4], DNS)
    )
    print("listening", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
