//! The load balancer with a kernel that is not this machine's, which has no tunnels: a server that takes packets out of each of them
//! as Linux does.

mod tunnels;

use libtest_mimic::{Arguments, Failed, Trial};
use testkit::Result;

type Body = fn() -> Result<()>;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials: [(&str, Body); 1] = [("every_tunnel_is_understood_by_linux", tunnels::every_one)];
    let trials = trials.map(|(name, body)| Trial::test(name, move || body().map_err(Failed::from)));
    libtest_mimic::run(&arguments, trials.into()).exit();
}
