//! docs/security-groups.md as sessions, in words of a lab that two programs have: this one, whose
//! NICs are ports in memory, and `tests/veths`, where they are the interfaces of containers, of a
//! daemon whose known flows the kernel forwards. `tests/contracts.rs` compares the items that are
//! named here with those of the page.
//!
//! A session gets a fresh lab, once for each family. What it may ask of that:
//!
//! | word | what it does |
//! |---|---|
//! | `nic`, `two`, `configure`, `sniffs`, `delete` | NICs |
//! | `group`, `group_of`, `set_rules`, `change_groups`, `set_members`, `drain`, `unknown_tcp`, `delete_group` | groups |
//! | `passes`, `passes_to`, `refuses`, `resets`, `connect` | a frame, and what becomes of it alone |
//! | `keeps_passing` | a flow's frame passes so often that the kernel forwards it, where there is one |
//! | `change_amid` | a change while frames are on their way |
//! | `settle` | NICs are not new any more |
//! | `share` | how many flows a NIC may have begun: few |
//! | `flows` | how many are tracked |
//!
//! What takes a clock of one's own or a look inside is in the files beside this
//! folder.

mod always;
mod changes;
pub mod errors;
pub mod fragments;
mod malformed;
mod rules;
mod spoof;
mod state;
pub mod words;

use dataplane::GroupIdx;
use dataplane::ruleset::RuleSpec;

use crate::lab::Lab;
use words::*;

/// A session: it fails by a panic.
pub type Session = fn(&mut Lab, Family);

/// Makes each a test of libtest, and one of [`SESSIONS`] for a program that has a runner of its
/// own, where the compiler leaves the former out.
macro_rules! sessions {
    ($($file:ident::$name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                for family in FAMILIES {
                    $file::$name(&mut Lab::new(), family);
                }
            }
        )+

        /// Each by its name.
        #[allow(dead_code, reason = "for where libtest runs nothing")]
        pub const SESSIONS: &[(&str, Session)] = &[$((stringify!($name), $file::$name)),+];
    };
}

sessions![
    rules::nothing_comes_in_and_own_addresses_go_out_by_default,
    rules::a_rule_is_a_direction_a_protocol_and_a_range_of_ports,
    rules::icmp_rules_mean_icmpv6_too_and_name_types_and_codes,
    rules::an_egress_rule_of_any_group_ends_the_default,
    rules::rules_of_all_groups_add_up_and_a_missing_group_allows_nothing,
    rules::a_nic_that_names_a_missing_group_sends_only_what_other_groups_allow,
    rules::a_group_stands_for_its_members,
    rules::a_network_is_one_family_and_its_prefix,
    rules::what_both_sides_allow_altogether_takes_no_state,
    state::an_answer_passes_whatever_the_other_directions_rules_say,
    state::any_other_protocol_is_known_by_addresses_and_number,
    state::a_connection_begins_with_a_syn_and_both_directions_pass,
    state::a_reset_ends_a_connection,
    state::a_group_may_let_connections_begin_in_the_middle,
    state::a_nic_that_fills_its_share_loses_its_own_new_flows,
    state::tcp_amid_an_unknown_connection_is_answered_by_a_reset,
    errors::an_error_about_a_tracked_flow_passes_without_a_rule,
    errors::errors_about_echos_are_matched_and_others_need_a_rule,
    fragments::later_fragments_get_what_the_first_one_got,
    fragments::overlapping_fragments_lose_the_rest_of_the_datagram,
    fragments::a_first_fragment_holds_its_headers,
    changes::a_rule_taken_away_cuts_its_flows_at_once,
    changes::a_draining_groups_flows_live_on,
    changes::what_a_draining_group_let_out_lives_on,
    changes::members_and_addresses_move_while_flows_run,
    changes::a_nic_that_is_gone_is_reached_no_more,
    changes::no_packet_sees_half_of_a_change,
    always::arp_and_neighbour_discovery_pass_without_a_rule,
    always::router_advertisements_and_redirects_need_permission,
    always::dhcp_clients_ask_and_only_servers_answer,
    always::a_nic_that_bypasses_filtering_is_not_filtered,
    always::a_sniffer_gets_copies_and_sends_nothing,
    malformed::malformed_headers_are_dropped_with_a_reason,
    malformed::a_known_flow_carries_nothing_malformed,
    spoof::the_source_mac_is_always_ones_own,
    spoof::the_source_address_is_ones_own_when_the_nic_asks_for_it,
    spoof::allowed_pairs_are_addresses_with_their_mac,
    spoof::neighbours_are_who_they_say,
    spoof::a_borrowed_address_touches_nobody_elses_flow,
];

/// What is said in other words of either lab.
impl Lab {
    /// Two NICs of one network; the second is in a group with these rules, the first in none.
    pub fn two(&mut self, rules: Vec<RuleSpec>) -> (Nic, Nic) {
        let (a, b) = (self.nic(), self.nic());
        self.group_of(b, rules);
        (a, b)
    }

    /// A new group with these rules and this one NIC in it.
    pub fn group_of(&mut self, nic: Nic, rules: Vec<RuleSpec>) -> GroupIdx {
        let group = self.group(rules);
        self.configure(nic, |config| config.groups.push(group));
        group
    }

    /// The frame arrives, as it is, at `to` and nowhere else, and nothing is dropped.
    #[track_caller]
    pub fn passes(&mut self, from: Nic, to: Nic, frame: Vec<u8>) {
        self.passes_to(from, &[to], frame);
    }

    /// Opens a TCP connection from `a` to port `dport` of `b`. Both begin at sequence number 1000.
    #[track_caller]
    pub fn connect(&mut self, a: Nic, b: Nic, family: Family, sport: u16, dport: u16) {
        let syn = ip(a, b, family).tcp(sport, dport, SYN).seq(1000);
        self.passes(a, b, syn.build());
        let answer = ip(b, a, family).tcp(dport, sport, SYN_ACK);
        self.passes(b, a, answer.seq(1000).ack(1001).build());
        self.passes(a, b, amid(a, b, family, sport, dport));
    }
}
