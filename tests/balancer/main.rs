//! The load balancer among real kernels: clients, the balancer's host and servers are namespaces on
//! one Ethernet; the daemon runs in the balancer's, the servers speak HTTP and answer the clients
//! themselves.

mod announce;
mod clients;
mod command;
mod cpus;
mod declared;
mod flood;
mod flows;
mod frr_router;
mod health;
mod interfaces;
mod library;
mod paths;
mod stage;
mod upgrade;

use butterfly_tests::web::serve_if_asked;
use libtest_mimic::{Arguments, Failed, Trial};
use stage::Stage;
use testkit::Result;

/// One trial.
type Session = fn(&mut Stage) -> Result<()>;

/// In the order in which they run, with the mode of the balancer's interface.
const TRIALS: [(&str, &str, Session); 45] = [
    (
        "flows_are_spread_and_counted",
        "native",
        flows::are_spread_and_counted,
    ),
    (
        "ten_thousand_connections_survive",
        "native",
        flows::ten_thousand_survive,
    ),
    (
        "a_flood_displaces_no_connection",
        "native",
        flows::are_not_displaced,
    ),
    (
        "health_is_asked_through_the_vip",
        "native",
        health::is_asked_through_the_vip,
    ),
    (
        "checks_keep_connections_over_a_restart",
        "native",
        health::keeps_connections_over_a_restart,
    ),
    ("an_upgrade_keeps_flows", "native", upgrade::keeps_flows),
    (
        "an_upgrade_of_a_service_keeps_flows",
        "native",
        upgrade::of_a_service_keeps_flows,
    ),
    (
        "an_upgrade_keeps_flows_in_generic_mode",
        "generic",
        upgrade::keeps_flows,
    ),
    ("an_upgrade_keeps_flows_at_tc", "tc", upgrade::keeps_flows),
    ("a_kill_keeps_flows", "native", upgrade::a_kill_keeps_flows),
    (
        "a_kill_keeps_flows_in_generic_mode",
        "generic",
        upgrade::a_kill_keeps_flows,
    ),
    (
        "a_kill_keeps_flows_at_tc",
        "tc",
        upgrade::a_kill_keeps_flows,
    ),
    (
        "an_upgrade_keeps_datagrams_and_sticky_clients",
        "native",
        upgrade::keeps_datagrams_and_sticky_clients,
    ),
    (
        "an_upgrade_keeps_datagrams_and_sticky_clients_at_tc",
        "tc",
        upgrade::keeps_datagrams_and_sticky_clients,
    ),
    (
        "every_kind_of_check_tells",
        "generic",
        health::by_every_kind_of_check,
    ),
    (
        "the_interface_stays_the_kernel_s",
        "generic",
        interfaces::stay_the_kernel_s,
    ),
    (
        "the_interface_stays_the_kernel_s_in_native_mode",
        "native",
        interfaces::stay_the_kernel_s,
    ),
    (
        "an_interface_that_loses_frames_is_told",
        "native",
        interfaces::tell_that_they_lose_frames,
    ),
    (
        "a_refused_mode_changes_nothing",
        "generic",
        interfaces::keep_their_mode,
    ),
    (
        "an_interface_that_comes_back_is_taken_again",
        "generic",
        interfaces::come_back,
    ),
    (
        "the_configuration_is_declared",
        "generic",
        declared::with_the_rest,
    ),
    (
        "a_daemon_that_stands_still_balances_on",
        "native",
        flows::go_on_while_the_daemon_stands_still,
    ),
    ("services_of_ipv6", "native", paths::of_ipv6),
    ("sockets_on_interfaces_as_they_are", "tc", paths::of_sockets),
    (
        "flows_are_spread_and_counted_at_tc",
        "tc",
        flows::are_spread_and_counted,
    ),
    (
        "ten_thousand_connections_survive_at_tc",
        "tc",
        flows::ten_thousand_survive,
    ),
    (
        "health_is_asked_through_the_vip_at_tc",
        "tc",
        health::is_asked_through_the_vip,
    ),
    ("services_of_ipv6_at_tc", "tc", paths::of_ipv6),
    ("datagrams_in_fragments_at_tc", "tc", paths::of_fragments),
    (
        "errors_reach_the_server_of_their_flow_at_tc",
        "tc",
        paths::of_errors,
    ),
    (
        "a_balancer_behind_a_bridge",
        "generic",
        paths::behind_a_bridge,
    ),
    ("datagrams_in_fragments", "native", paths::of_fragments),
    (
        "errors_reach_the_server_of_their_flow",
        "generic",
        paths::of_errors,
    ),
    (
        "addresses_are_announced_by_bird",
        "generic",
        announce::by_bird,
    ),
    (
        "addresses_are_announced_by_frr",
        "generic",
        announce::by_frr,
    ),
    (
        "the_daemon_s_own_bgp_tells_bird",
        "tc",
        announce::of_its_own_to_bird,
    ),
    ("the_daemon_s_own_bgp_tells_frr", "tc", frr_router::is_told),
    (
        "a_silent_host_is_missed_by_frr",
        "tc",
        frr_router::misses_a_silent_host,
    ),
    (
        "a_silent_host_is_missed_by_frr_without_bfd",
        "tc",
        frr_router::waits_for_the_hold_time,
    ),
    (
        "bfd_misses_a_host_that_says_nothing",
        "tc",
        announce::is_missed_by_bfd,
    ),
    (
        "settings_of_bgp_that_cannot_be_are_refused",
        "tc",
        announce::is_refused_with_a_sentence,
    ),
    (
        "one_command_balances_without_a_daemon",
        "generic",
        command::balances_without_a_daemon,
    ),
    (
        "one_command_balances_several_services",
        "generic",
        command::balances_several,
    ),
    (
        "one_command_goes_on_where_another_ended",
        "generic",
        command::stays,
    ),
    (
        "the_library_balances_without_daemon_and_compiler",
        "generic",
        library::balances_without_daemon_and_compiler,
    ),
];

fn main() {
    match serve_if_asked().and_then(|()| library::run_if_asked()) {
        Ok(false) => {}
        Ok(true) => return,
        Err(why) => {
            eprintln!("{why}");
            std::process::exit(1);
        }
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = TRIALS.map(|(name, mode, body)| {
        Trial::test(name, move || {
            let mut stage = Stage::start(mode)?;
            body(&mut stage).map_err(|e| Failed::from(format!("{e}\n{}", stage.dump())))
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}
