//! The v1 API: gRPC. A decoder over the controller.
//!
//! [`server`] has the listeners, [`service`] the methods; [`convert`] turns messages into the
//! model, [`render`] the model into messages; [`declare`] makes the configuration one declared
//! document; [`watch`] is the stream of events, [`observe`] what can be counted and listed,
//! [`objects`] NICs and groups, [`overlay`] who is where, [`workers`] what the workers are doing
//! and the rings of their ports; [`interface`] is shared with the services of the load balancer and
//! the router, which [`server`] serves too; [`health`] is gRPC's own service that says whether all
//! this works. [`bounds`] is what clients can take of the daemon; [`weigh`] tells what a request
//! takes before it is decoded; [`declaring`] has methods without a connection.

pub mod bounds;
pub mod budget;
pub mod capture;
pub mod convert;
mod declare;
pub mod declaring;
mod flows;
mod health;
mod history;
pub mod interface;
mod objects;
mod observe;
mod overlay;
pub mod render;
pub mod reply;
pub mod server;
pub mod service;
pub mod tls;
mod trace;
pub mod turns;
pub mod uplinks;
mod watch;
pub mod weigh;
mod workers;

pub(crate) use service::refused;
