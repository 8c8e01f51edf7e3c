//! The balancer's part of the declared configuration: `butterfly config` and `butterfly apply`.

use butterfly_tests::lab::check;
use serde_json::{Value, json};
use testkit::Result;

use crate::stage::{SERVICE, Stage};

/// Services are declared with the rest, in one step: all of a file or nothing of it.
pub fn the_configuration_is_declared(stage: &mut Stage) -> Result<()> {
    let keys = |stage: &Stage| -> Result<Vec<String>> {
        let services = stage.daemon.json("service show")?;
        let vip = |status: &Value| {
            status["service"]["key"]["vip"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        Ok(services
            .as_array()
            .ok_or("no list")?
            .iter()
            .map(vip)
            .collect())
    };
    stage.daemon.cli(&format!(
        "service add {SERVICE} --server 10.1.2.10*3 10.1.2.11 --check http --rise 5"
    ))?;
    let before = stage.daemon.json("config")?;
    let service = &before["balancer"]["services"][0];
    check(
        service["servers"][0]["weight"] == 3,
        &format!("services are in the configuration: {before}"),
    )?;

    // Another weight, another service: shown first, then done.
    let mut declared = before.clone();
    declared["balancer"]["services"][0]["servers"][0]["weight"] = json!(7);
    let other = json!({ "key": { "vip": "192.168.101.2", "port": 53, "protocol": 17 } });
    let services = declared["balancer"]["services"]
        .as_array_mut()
        .ok_or("no list of services")?;
    services.push(other);
    let lines = "~ service 192.168.101.1:80/tcp\n    server 10.1.2.10 weight: 3 -> 7\n\
                 + service 192.168.101.2:53/udp\n";
    let shown = apply(stage, &declared, "--dry-run")?;
    check(shown == lines, &format!("what would change:\n{shown}"))?;
    check(
        stage.daemon.json("config")? == before,
        "a dry run changes nothing",
    )?;
    let done = apply(stage, &declared, "")?;
    check(done == lines, &format!("what changed:\n{done}"))?;
    check(
        keys(stage)? == ["192.168.101.1", "192.168.101.2"],
        "both services are there",
    )?;
    check(
        apply(stage, &declared, "")?.is_empty(),
        "a second time nothing differs",
    )?;

    // A NIC that cannot be had: nothing of the file is in force, no service either.
    let mut bad = declared.clone();
    bad["balancer"]["services"] = json!([]);
    let path = "/nonexistent/dir/socket";
    bad["nics"] = json!([{ "id": "n", "mac": "52:54:00:00:00:01", "vni": 7, "path": path }]);
    check(apply(stage, &bad, "").is_err(), "the NIC is refused")?;
    check(keys(stage)?.len() == 2, "and the services stay")?;
    // A service that makes no sense: the same.
    let mut bad = declared.clone();
    bad["balancer"]["services"][1]["key"]["vip"] = json!("224.0.0.1");
    let why = apply(stage, &bad, "").err().unwrap_or_default();
    check(
        why.contains("224.0.0.1"),
        &format!("the refusal names the value: {why}"),
    )?;

    // A file from before there were services leaves them; one that says there are none deletes
    // them.
    check(apply(stage, &json!({}), "")?.is_empty(), "left out")?;
    check(keys(stage)?.len() == 2, "they stay as they are")?;
    let done = apply(stage, &json!({ "balancer": {} }), "")?;
    check(
        done == "- service 192.168.101.1:80/tcp\n- service 192.168.101.2:53/udp\n",
        &format!("all are deleted:\n{done}"),
    )?;
    check(keys(stage)?.is_empty(), "none is left")
}

/// Interfaces are declared with their mode, which a document changes; and one document is all that
/// a daemon that knows nothing needs.
pub fn interfaces_are_declared_with_their_mode(stage: &mut Stage) -> Result<()> {
    let is = |stage: &Stage, mode: &str| {
        let declared = stage.daemon.json("config")?["balancer"]["interfaces"].take();
        let list = json!({ "interfaces": [{ "name": "eth0", "mode": mode }] });
        check(
            declared == list,
            &format!("eth0 is declared as {mode}: {declared}"),
        )?;
        let attached = stage.daemon.json("service interface list")?;
        check(
            attached[0]["name"] == "eth0" && attached[0]["mode"] == mode,
            &format!("eth0 is attached as {mode}: {attached}"),
        )
    };
    stage.set_services(&format!(
        "service add {SERVICE} --server 10.1.2.10 10.1.2.11"
    ))?;
    is(stage, "XDP_MODE_GENERIC")?;
    let mut document = stage.daemon.json("config")?;
    document["balancer"]["interfaces"]["interfaces"][0]["mode"] = json!("XDP_MODE_TC");
    let lines = "~ service interface eth0\n    mode: generic -> tc\n";
    let shown = apply(stage, &document, "--dry-run")?;
    check(shown == lines, &format!("what would change:\n{shown}"))?;
    is(stage, "XDP_MODE_GENERIC")?;
    let done = apply(stage, &document, "")?;
    check(done == lines, &format!("what changed:\n{done}"))?;
    is(stage, "XDP_MODE_TC")?;

    // It has no store.
    stage.daemon.stop_and_restart()?;
    let nothing = stage.daemon.json("service interface list")?;
    check(
        nothing == json!([]),
        &format!("a new daemon knows none: {nothing}"),
    )?;
    let done = apply(stage, &document, "")?;
    check(
        done == "+ service 192.168.101.1:80/tcp\n+ service interface eth0\n",
        &format!("all is there again:\n{done}"),
    )?;
    is(stage, "XDP_MODE_TC")?;
    stage.servers_are_reached()?;
    check(stage.open(10)?.len() == 10, "and clients are served")?;

    // Left out they stay; none means none.
    document["balancer"]["interfaces"] = Value::Null;
    let done = apply(stage, &document, "")?;
    check(done.is_empty(), &format!("left out:\n{done}"))?;
    is(stage, "XDP_MODE_TC")?;
    document["balancer"]["interfaces"] = json!({});
    let done = apply(stage, &document, "")?;
    check(
        done == "- service interface eth0\n",
        &format!("it is given back:\n{done}"),
    )?;
    let nothing = stage.daemon.json("service interface list")?;
    check(
        nothing == json!([]),
        &format!("nothing is balanced on: {nothing}"),
    )
}

/// `butterfly apply` of a document.
fn apply(stage: &Stage, document: &Value, option: &str) -> Result<String> {
    let file = stage.daemon.dir().join("declared.json");
    std::fs::write(&file, document.to_string()).map_err(|e| format!("{}: {e}", file.display()))?;
    stage
        .daemon
        .cli(&format!("apply {} {option}", file.display()))
}
