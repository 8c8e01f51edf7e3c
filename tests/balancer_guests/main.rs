//! The load balancer with a kernel that is not this machine's, which has no tunnels: a server that
//! takes packets out of each of them as Linux does.

mod tunnels;

use butterfly_tests::trials;
use butterfly_tests::trials::run_each;

fn main() {
    run_each(trials![tunnels::every_tunnel_is_understood_by_linux])
}
