//! These very tests on another kernel: in a guest, on Debian's, which has the VLAN and bond devices
//! that this machine's may lack.

use std::time::Duration;
use testkit::image::Image;
use testkit::qemu::{Guest, Machine};

#[test]
fn the_same_on_another_kernel() {
    let own = std::env::current_exe().expect("this program's path");
    let (path, name) = (own.to_str(), own.file_name().and_then(|name| name.to_str()));
    let (path, name) = (path.expect("UTF-8"), name.expect("UTF-8"));
    let machine = Machine::named("host").with_tools().with_programs(&[path]);
    let host = Guest::start(&Image::ready().expect("an image"), &machine).expect("a guest");
    let command = format!("modprobe tun && {name} --test-threads 1 devices::");
    let output = host
        .run(&command, Duration::from_secs(900))
        .expect("an answer");
    println!("{}", output.text);
    assert_eq!(output.code, 0, "{}", output.text);
    assert!(!output.text.contains("skipped"), "{}", output.text);
}
