//! The steps of the path, one file each. A step is done for the whole batch before the next one
//! begins.

pub(crate) mod always;
pub(crate) mod begin;
pub(crate) mod deliver;
pub(crate) mod destination;
pub(crate) mod encapsulate;
pub(crate) mod fast_path;
pub(crate) mod fragments;
pub(crate) mod known;
pub(crate) mod late;
pub(crate) mod log;
pub(crate) mod merge;
pub(crate) mod neighbours;
pub(crate) mod outer;
pub(crate) mod parse;
pub(crate) mod put_off;
mod redecide;
pub(crate) mod related;
pub(crate) mod remember;
pub(crate) mod reset;
pub(crate) mod rules;
pub(crate) mod spoof;
pub(crate) mod terms;
pub(crate) mod wait;
