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

use butterfly_tests::trials;
use butterfly_tests::web::serve_if_asked;
use libtest_mimic::{Arguments, Failed, Trial};
use stage::Stage;
use testkit::Result;

/// One trial.
type Session = fn(&mut Stage) -> Result<()>;

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
    // By the mode of the balancer's interface, which ends their names.
    let modes: [(&str, &[(&str, Session)]); 3] = [
        (
            "native",
            &trials![
                flows::flows_are_spread_and_counted,
                flows::ten_thousand_connections_survive,
                flows::a_flood_displaces_no_connection,
                flows::balancers_of_one_seed_choose_alike,
                health::health_is_asked_through_the_vip,
                health::checks_keep_connections_over_a_restart,
                health::an_interface_of_checks_that_is_down_is_no_server_s_failure,
                health::an_interface_of_checks_that_is_gone_is_made_again,
                upgrade::an_upgrade_keeps_flows,
                upgrade::an_upgrade_of_a_service_keeps_flows,
                upgrade::a_kill_keeps_flows,
                upgrade::a_kill_after_a_server_was_away_keeps_flows,
                upgrade::an_upgrade_keeps_datagrams_and_sticky_clients,
                interfaces::the_interface_stays_the_kernel_s,
                interfaces::an_interface_that_loses_frames_is_told,
                flows::a_daemon_that_stands_still_balances_on,
                paths::services_of_ipv6,
                paths::datagrams_in_fragments,
            ],
        ),
        (
            "generic",
            &trials![
                upgrade::an_upgrade_keeps_flows,
                upgrade::an_interface_that_comes_amid_an_upgrade_is_taken,
                upgrade::a_kill_keeps_flows,
                health::every_kind_of_check_tells,
                interfaces::the_interface_stays_the_kernel_s,
                interfaces::a_refused_mode_changes_nothing,
                interfaces::an_interface_that_comes_back_is_taken_again,
                declared::the_configuration_is_declared,
                declared::interfaces_are_declared_with_their_mode,
                paths::a_balancer_behind_a_bridge,
                paths::errors_reach_the_server_of_their_flow,
                announce::addresses_are_announced_by_bird,
                announce::another_s_route_is_no_announcement,
                announce::addresses_are_announced_by_frr,
                announce::a_stop_withdraws_side_by_side,
                command::one_command_balances_without_a_daemon,
                command::one_command_balances_several_services,
                command::one_command_goes_on_where_another_ended,
                library::the_library_balances_without_daemon_and_compiler,
            ],
        ),
        (
            "tc",
            &trials![
                upgrade::an_upgrade_keeps_flows,
                upgrade::a_kill_keeps_flows,
                upgrade::an_upgrade_keeps_datagrams_and_sticky_clients,
                paths::sockets_on_interfaces_as_they_are,
                flows::flows_are_spread_and_counted,
                flows::ten_thousand_connections_survive,
                health::health_is_asked_through_the_vip,
                health::an_interface_of_checks_that_is_down_is_no_server_s_failure,
                health::an_interface_of_checks_that_is_gone_is_made_again,
                paths::services_of_ipv6,
                paths::datagrams_in_fragments,
                paths::errors_reach_the_server_of_their_flow,
                announce::the_daemon_s_own_bgp_tells_bird,
                announce::the_unit_s_daemon_speaks_bgp,
                announce::a_session_that_bird_gives_up_is_told_and_tried_again,
                frr_router::the_daemon_s_own_bgp_tells_frr,
                frr_router::a_silent_host_is_missed_by_frr,
                frr_router::a_silent_host_is_missed_by_frr_without_bfd,
                announce::bfd_misses_a_host_that_says_nothing,
                announce::settings_of_bgp_that_cannot_be_are_refused,
            ],
        ),
    ];
    let trial = |mode: &'static str, name: &str, body: Session| {
        Trial::test(format!("{name}_{mode}"), move || {
            let mut stage = Stage::start(mode)?;
            body(&mut stage).map_err(|e| Failed::from(format!("{e}\n{}", stage.dump())))
        })
    };
    let trials = modes.iter().flat_map(|&(mode, trials)| {
        let of_mode = trials.iter();
        of_mode.map(move |&(name, body)| trial(mode, name, body))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
