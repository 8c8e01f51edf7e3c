//! Packet in, whole packet and verdict out: the load balancer's program under BPF_PROG_TEST_RUN, row by row.
//!
//! What should come out is built by `wire::build`, which shares no code with the program. Needs no interface and no network.

mod answers;
mod encapsulation;
mod errors;
mod flows;
mod fragments;
mod hostile;
mod reach;
mod stage;
mod watch;
