//! What a namespace's devices send and receive, as packet sockets see it: whole, with checksums
//! that are only begun and segments that nobody has cut.

use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with, sockopt,
};
use testkit::netns::Namespace;

/// All that passes between two looks, in megabytes.
const ROOM: usize = 128 << 20;
const LONGEST: usize = 128 << 10;

pub struct Capture(OwnedFd);

impl Capture {
    /// Of all devices of a namespace, from now on.
    pub fn new(of: &Namespace) -> Capture {
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(
                AddressFamily::PACKET,
                SocketType::RAW,
                flags,
                Some(eth::ALL),
            )
        };
        let socket = of.inside(open).expect("enter").expect("a packet socket");
        sockopt::set_socket_recv_buffer_size_force(&socket, ROOM).expect("room");
        Capture(socket)
    }

    /// What has passed since the last look.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; LONGEST];
        while let Ok((len, whole)) = recv(&self.0, &mut buffer[..], RecvFlags::TRUNC) {
            assert_eq!(len, whole, "a frame of {whole} bytes");
            frames.push(buffer[..len].to_vec());
        }
        frames
    }
}
