//! Sessions over ports in memory, in virtual time: make NICs, give them rules, send frames, and say
//! what arrived, and that nothing else did, for IPv4 and IPv6 alike; every drop reason is provoked
//! by one of them. Those of `contract` follow docs/security-groups.md item by item, and are run on
//! containers' interfaces as well; here is besides them what takes a clock, or a look inside.

extern crate butterfly_dataplane as dataplane;

mod always;
mod attacks;
mod both_paths;
mod captures;
mod changes;
mod contract;
mod errors;
mod flow_log;
mod forged;
mod fragments;
mod handle;
mod lab;
mod left;
mod limits;
mod links;
mod model;
mod mtu;
mod overlay;
mod overlay_contact;
mod overlay_drops;
mod overlay_flood;
mod overlay_merge;
mod overlay_mtu;
mod rates;
mod resets;
mod rings;
mod rule_lookups;
mod rules;
mod sampling;
mod seen;
mod spoof;
mod switching;
mod tcp;
mod traces;
mod unrest;
mod wire_lab;
mod workers;
