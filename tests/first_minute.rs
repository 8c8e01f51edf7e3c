//! `make demo` runs to its end: it checks each of its own steps, so what is left to see here is
//! that it says so and that the reasons it shows are those of the security groups.

use butterfly_tests::daemon::program;
use butterfly_tests::lab::check;
use butterfly_tests::trials::run_each;
use std::process::{Command, Stdio};
use testkit::Result;

fn main() {
    run_each([("the_demo_runs_to_its_end", demo)])
}

fn demo() -> Result<()> {
    // Its steps are bounded, and the runner bounds this program.
    let output = Command::new(program("demo"))
        .env_remove("HOLD")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("demo: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let why = String::from_utf8_lossy(&output.stderr);
    check(
        output.status.success(),
        &format!("it ends well:\n{said}\n{why}"),
    )?;
    check(
        said.contains("nothing is left behind"),
        &format!("it says that it is done:\n{said}"),
    )?;
    // One in each act: a group without rules lets nothing in.
    let reasons = said.matches("no_ingress_rule").count();
    check(
        reasons == 2,
        &format!("the drops' reason is shown:\n{said}"),
    )
}
