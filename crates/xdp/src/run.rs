//! A trial: one packet into a loaded program, whole packet and verdict out (BPF_PROG_TEST_RUN), and
//! what it costs.

use std::time::{Duration, Instant};

use libbpf_rs::ProgramInput;

use crate::error::Error;
use crate::program::Program;

/// What a program said of a packet (`enum xdp_action` of linux/bpf.h; at tc TC_ACT_* of
/// linux/pkt_cls.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stumbled.
    Aborted,
    /// Dropped.
    Drop,
    /// To the kernel.
    Pass,
    /// Back out of the interface it came by. At tc that is a redirect like any other.
    Transmit,
    /// To another interface, CPU or socket.
    Redirect,
    /// No action that exists.
    Unknown(u32),
}

impl From<u32> for Verdict {
    fn from(action: u32) -> Self {
        match action {
            0 => Verdict::Aborted,
            1 => Verdict::Drop,
            2 => Verdict::Pass,
            3 => Verdict::Transmit,
            4 => Verdict::Redirect,
            other => Verdict::Unknown(other),
        }
    }
}

impl Verdict {
    /// What a program at tc ingress said.
    fn at_tc(action: u32) -> Self {
        match action as i32 {
            -1 | 0 => Verdict::Pass,
            2 => Verdict::Drop,
            7 => Verdict::Redirect,
            _ => Verdict::Unknown(action),
        }
    }
}

/// What became of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// What the program said.
    pub verdict: Verdict,
    /// The packet as the program left it.
    pub frame: Vec<u8>,
    /// What one run took, on average of all.
    pub took: Duration,
}

/// Room for what a program puts in front of a packet: more than any encapsulation here.
const GROWTH: usize = 256;

/// Where a trial's packet comes in: `struct xdp_md` of linux/bpf.h as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Context {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// A trial's context at tc ingress: `struct __sk_buff`, of which the kernel lets a trial set
/// little.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Buffer {
    before: [u32; 10],
    ifindex: u32,
    between: [u32; 30],
    gso_segs: u32,
    socket: u64,
    gso_size: u32,
    pad: u32,
    hwtstamp: u64,
}

const _: () = assert!(size_of::<Buffer>() == 192);

/// Runs a program over a packet, `repeat` times (at least once; each time over what the time before
/// left). `ifindex` says by which interface, in the caller's network namespace, it came in, 0 for
/// the loopback.
///
/// # Errors
/// The kernel refuses: a packet shorter than an Ethernet header, no such interface or queue.
pub fn run(program: &Program, frame: &[u8], ifindex: u32, repeat: u32) -> Result<Run, Error> {
    if program.is_tc() {
        return run_segments(program, frame, ifindex, 0, repeat);
    }
    let mut out = vec![0xa5; frame.len() + GROWTH];
    let mut context = Context {
        data: 0,
        data_end: u32::try_from(frame.len()).unwrap_or(u32::MAX),
        data_meta: 0,
        ingress_ifindex: ifindex,
        rx_queue_index: 0,
        egress_ifindex: 0,
    };
    let input = ProgramInput {
        context_in: (ifindex != 0).then(|| bytemuck::bytes_of_mut(&mut context)),
        data_in: Some(frame),
        data_out: Some(&mut out),
        repeat,
        ..ProgramInput::default()
    };
    let output = program.program()?.test_run(input).map_err(Error::Run)?;
    Ok(Run {
        verdict: output.return_value.into(),
        frame: output.data.map(|data| data.to_vec()).unwrap_or_default(),
        took: output.duration,
    })
}

/// Runs a program at tc ingress over a packet that is several segments of `segment` bytes of
/// payload each (0: it is one). A VLAN tag in the frame stays there in a trial, and one that the
/// program adds is beside the frame, where a trial does not show it.
///
/// # Errors
/// Those of [`run`].
pub fn run_segments(
    program: &Program,
    frame: &[u8],
    ifindex: u32,
    segment: u32,
    repeat: u32,
) -> Result<Run, Error> {
    run_at_tc(program, frame, ifindex, segment, repeat, 0)
}

/// Runs a program at tc ingress over a packet that a NIC has summed (CHECKSUM_COMPLETE), as if it
/// came by the loopback.
///
/// # Errors
/// EBADMSG: the sum is not the packet's any more; EINVAL: the kernel cannot try that (before Linux
/// 6.11). Those of [`run`].
pub fn run_summed(program: &Program, frame: &[u8]) -> Result<Run, Error> {
    const CHECKSUM_COMPLETE: u32 = 1 << 2;
    run_at_tc(program, frame, 0, 0, 1, CHECKSUM_COMPLETE)
}

fn run_at_tc(
    program: &Program,
    frame: &[u8],
    ifindex: u32,
    segment: u32,
    repeat: u32,
    flags: u32,
) -> Result<Run, Error> {
    let mut out = vec![0xa5; frame.len() + GROWTH];
    let mut buffer = Buffer {
        ifindex,
        gso_size: segment,
        ..bytemuck::Zeroable::zeroed()
    };
    let input = ProgramInput {
        context_in: Some(bytemuck::bytes_of_mut(&mut buffer)),
        data_in: Some(frame),
        data_out: Some(&mut out),
        repeat,
        flags,
        ..ProgramInput::default()
    };
    let output = program.program()?.test_run(input).map_err(Error::Run)?;
    Ok(Run {
        verdict: Verdict::at_tc(output.return_value),
        frame: output.data.map(|data| data.to_vec()).unwrap_or_default(),
        took: output.duration,
    })
}

/// Lets a program send a frame from an interface `repeat` times, for real: what it answers is done,
/// XDP_TX leaves by that interface (BPF_F_TEST_XDP_LIVE_FRAMES, since Linux 5.18). Gives the time
/// that all of it took.
///
/// # Errors
/// The kernel refuses: no such interface in the caller's network namespace, no native XDP there.
pub fn send(program: &Program, frame: &[u8], ifindex: u32, repeat: u32) -> Result<Duration, Error> {
    const LIVE_FRAMES: u32 = 1 << 1;
    let mut context = Context {
        data: 0,
        data_end: u32::try_from(frame.len()).unwrap_or(u32::MAX),
        data_meta: 0,
        ingress_ifindex: ifindex,
        rx_queue_index: 0,
        egress_ifindex: 0,
    };
    let input = ProgramInput {
        context_in: Some(bytemuck::bytes_of_mut(&mut context)),
        data_in: Some(frame),
        repeat,
        flags: LIVE_FRAMES,
        ..ProgramInput::default()
    };
    // Loaded now, if it was not: that is none of the time.
    let program = program.xdp()?;
    let start = Instant::now();
    program.program()?.test_run(input).map_err(Error::Run)?;
    Ok(start.elapsed())
}
