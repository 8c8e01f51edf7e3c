//! The declarations of `shim/shim.c`.

use std::ffi::{c_char, c_int, c_void};

/// A frame in a buffer of DPDK's.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Frame {
    pub mbuf: *mut c_void,
    /// Of the first segment, which has `length` bytes.
    pub data: *const u8,
    pub length: u32,
    /// Bytes of all segments.
    pub whole: u32,
}

#[derive(Debug, Default)]
#[repr(C)]
pub struct Counted {
    pub received: u64,
    pub sent: u64,
    pub missed: u64,
    pub errors: u64,
    pub no_buffer: u64,
    pub unsent: u64,
}

#[derive(Debug)]
#[repr(C)]
pub struct Described {
    pub queues_least: u16,
    pub queues_most: u16,
    pub mac: [u8; 6],
    pub sums: u8,
    pub mtu: u16,
    pub driver: [c_char; 64],
    pub name: [c_char; 64],
}

pub type Log = extern "C" fn(*const c_char, usize);

unsafe extern "C" {
    pub fn bf_start(argc: c_int, argv: *mut *mut c_char, to: Log) -> c_int;
    pub fn bf_next_port(port: u16) -> c_int;
    pub fn bf_describe(port: u16, device: *mut Described) -> c_int;
    pub fn bf_pool(port: u16, count: u32, mtu: u32) -> *mut c_void;
    pub fn bf_open(
        port: u16,
        queues: u16,
        frames: u16,
        mtu: u32,
        pools: *const *mut c_void,
        step: *mut *const c_char,
    ) -> c_int;
    pub fn bf_stop(port: u16);
    pub fn bf_close(port: u16);
    pub fn bf_is_removed(port: u16) -> c_int;
    pub fn bf_link(port: u16) -> i64;
    pub fn bf_count(port: u16, counted: *mut Counted) -> c_int;
    pub fn bf_enter_thread() -> c_int;
    pub fn bf_leave_thread();
    pub fn bf_receive(port: u16, queue: u16, frames: *mut Frame, most: u16) -> u16;
    pub fn bf_copy(mbuf: *const c_void, out: *mut u8, room: u32) -> u32;
    pub fn bf_free(mbuf: *mut c_void);
    pub fn bf_buffer(pool: *mut c_void, data: *mut *mut u8, room: *mut u32) -> *mut c_void;
    pub fn bf_fill(mbuf: *mut c_void, length: u32);
    pub fn bf_leave_sum(
        mbuf: *mut c_void,
        front: u16,
        ip: u16,
        l4: u16,
        is_ipv4: c_int,
        is_tcp: c_int,
    );
    pub fn bf_send(port: u16, queue: u16, mbufs: *mut *mut c_void, count: u16) -> u16;
}
