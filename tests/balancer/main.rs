//! The load balancer among real kernels: clients, the balancer's host and servers are namespaces on one Ethernet; the
//! daemon runs in the balancer's, the servers speak HTTP and answer the clients themselves.

mod announce;
mod command;
mod declared;
mod flows;
mod health;
mod interfaces;
mod paths;
mod stage;

use butterfly_tests::web::serve_if_asked;
use libtest_mimic::{Arguments, Failed, Trial};
use stage::Stage;
use testkit::Result;

/// One trial.
type Session = fn(&mut Stage) -> Result<()>;

/// In the order in which they run.
const TRIALS: [(&str, Session); 12] = [
    ("flows_are_spread_and_counted", flows::are_spread_and_counted),
    ("ten_thousand_connections_survive", flows::ten_thousand_survive),
    (
        "health_is_asked_through_the_vip",
        health::is_asked_through_the_vip,
    ),
    ("the_interface_stays_the_kernel_s", interfaces::stay_the_kernel_s),
    (
        "an_interface_that_comes_back_is_taken_again",
        interfaces::come_back,
    ),
    ("the_configuration_is_declared", declared::with_the_rest),
    ("services_of_ipv6", paths::of_ipv6),
    ("a_balancer_behind_a_bridge", paths::behind_a_bridge),
    ("datagrams_in_fragments", paths::of_fragments),
    ("errors_reach_the_server_of_their_flow", paths::of_errors),
    (
        "addresses_are_announced_by_a_routing_daemon",
        announce::by_a_routing_daemon,
    ),
    (
        "one_command_balances_without_a_daemon",
        command::balances_without_a_daemon,
    ),
];

fn main() {
    if let Err(why) = serve_if_asked() {
        eprintln!("{why}");
        std::process::exit(1);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = TRIALS.map(|(name, body)| {
        Trial::test(name, move || {
            let mut stage = Stage::start()?;
            body(&mut stage).map_err(|e| Failed::from(format!("{e}\n{}", stage.dump())))
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}
