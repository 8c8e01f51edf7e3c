//! The page that the daemon serves to browsers: the host at a glance, and a form for `trace`.
//!
//! Its files are in `files/` and in the program, as they are: no build chain. They ask for
//! `/api/SERVICE/METHOD`, which is API v1 in JSON ([`transcode`]), behind the same gate as gRPC,
//! and for `/history`, the rates of the last hour ([`history`]), which no API has.

pub mod history;
pub mod server;
mod token;
pub mod transcode;

pub use token::Token;
