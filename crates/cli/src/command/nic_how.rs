//! What a guest or a container needs to use a NIC: lines to copy, for `nic add --how` and
//! `nic show --how`. Ids and paths in them are made by others: each is quoted as the shell, QEMU's
//! options, XML or JSON have it.

use api::{shell, v1};
use serde_json::Value;

/// The lines for one NIC, each kind of user behind a comment.
pub fn lines(status: &v1::NicStatus) -> String {
    let nic = status.nic.clone().unwrap_or_default();
    let (id, mac, path) = (&nic.id, &nic.mac, &status.path);
    match nic.kind() {
        v1::NicKind::Unspecified | v1::NicKind::VhostUser => vhost_user(status, id, mac, path),
        v1::NicKind::Tap => {
            let path = shell::word(path);
            let mut text = format!(
                "# a namespace, NAME; the interface goes with the NIC and with the daemon\n\
                 ip link set {path} netns NAME name eth0\n\
                 ip -n NAME link set eth0 address {mac} up\n"
            );
            for ip in &nic.addresses {
                text += &format!("ip -n NAME addr add {ip}/LENGTH dev eth0\n");
            }
            text += "# QEMU or Firecracker: butterflyd has this device open, and no other can open \
                     it. One\n# that they open is of nic add --type vm-tap, with --how\n";
            text
        }
        v1::NicKind::Veth => {
            let veth = nic.veth.unwrap_or_default();
            let enter = match veth.netns.as_str() {
                name if name.bytes().all(|byte| byte.is_ascii_digit()) => {
                    format!("nsenter -t {name} -n")
                }
                path if path.starts_with('/') => format!("nsenter --net={}", shell::word(path)),
                name => format!("ip netns exec {}", shell::word(name)),
            };
            let (name, path) = (shell::word(&veth.ifname), shell::word(path));
            format!(
                "# it is in the container: {name}, with its addresses and routes\n\
                 {enter} ip addr show dev {name}\n\
                 # the same from the host's side\n\
                 tcpdump -n -e -i {path}\n"
            )
        }
        v1::NicKind::VmTap => vm_tap(&nic, path),
        v1::NicKind::Bench => "# nothing: it is inside the daemon\n".to_owned(),
    }
}

fn vm_tap(nic: &v1::Nic, path: &str) -> String {
    let (id, mac) = (&nic.id, &nic.mac);
    let (queues, mq) = match nic.vm_tap.unwrap_or_default().multi_queue {
        true => (",queues=N", ",mq=on"),
        false => ("", ""),
    };
    let mtu = match nic.mtu {
        0 => String::new(),
        mtu => format!(",host_mtu={mtu}"),
    };
    let (qemu_id, qemu_path) = (option(id), option(path));
    let qemu = |vhost: &str| {
        let netdev = format!(
            "tap,id=net-{qemu_id},ifname={qemu_path},script=no,downscript=no,vhost={vhost}{queues}"
        );
        let device = format!("virtio-net-pci,netdev=net-{qemu_id},mac={mac}{mq}{mtu}");
        format!(
            "-netdev {} \\\n-device {}\n",
            shell::word(&netdev),
            shell::word(&device)
        )
    };
    let (on, off) = (qemu("on"), qemu("off"));
    let (xml_path, json_path) = (attribute(path), Value::from(path));
    format!(
        "# QEMU where the host has /dev/vhost-net (module vhost_net): the kernel moves the frames\n\
         {on}\
         # QEMU where it has not, or QEMU may not open it: QEMU moves them, slower\n\
         {off}\
         # libvirt, which takes vhost-net where it is\n\
         <interface type='ethernet'>\n\
         \x20 <mac address='{mac}'/>\n\
         \x20 <target dev='{xml_path}' managed='no'/>\n\
         \x20 <model type='virtio'/>\n\
         </interface>\n\
         # Firecracker, PUT /network-interfaces/eth0\n\
         {{\"iface_id\": \"eth0\", \"guest_mac\": \"{mac}\", \"host_dev_name\": {json_path}}}\n"
    )
}

fn vhost_user(status: &v1::NicStatus, id: &str, mac: &str, path: &str) -> String {
    let is_client = status
        .nic
        .as_ref()
        .is_some_and(|nic| nic.vhost_mode() == v1::VhostMode::Client);
    let (qemu, mode) = match is_client {
        true => ("server=on,wait=off", "server"),
        false => ("reconnect=1", "client"),
    };
    let (id, xml_path) = (option(id), attribute(path));
    let chardev = format!("socket,id={id},path={},{qemu}", option(path));
    let netdev = format!("vhost-user,id=net-{id},chardev={id}");
    let device = format!("virtio-net-pci,netdev=net-{id},mac={mac}");
    let [chardev, netdev, device] = [&chardev, &netdev, &device].map(|text| shell::word(text));
    format!(
        "# QEMU; 2G is the guest's memory\n\
         -object memory-backend-memfd,id=mem,size=2G,share=on -machine memory-backend=mem \\\n\
         -chardev {chardev} \\\n\
         -netdev {netdev} \\\n\
         -device {device}\n\
         # libvirt; and in the domain <memoryBacking><source type='memfd'/><access \
         mode='shared'/></memoryBacking>\n\
         <interface type='vhostuser'>\n\
         \x20 <mac address='{mac}'/>\n\
         \x20 <source type='unix' path='{xml_path}' mode='{mode}'/>\n\
         \x20 <model type='virtio'/>\n\
         </interface>\n"
    )
}

/// A value of an option of QEMU's, in which a comma is said twice.
fn option(value: &str) -> String {
    value.replace(',', ",,")
}

/// A value of an attribute of XML, between single quotes.
fn attribute(value: &str) -> String {
    value
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_value_in_a_shell_qemu_and_xml() {
        const ID: &str = "a;$(id)',b<c>&";
        for kind in [v1::NicKind::VhostUser, v1::NicKind::VmTap] {
            let status = v1::NicStatus {
                nic: Some(v1::Nic {
                    id: ID.into(),
                    kind: kind.into(),
                    ..Default::default()
                }),
                path: format!("/run/{ID}"),
                ..Default::default()
            };
            let text = lines(&status);
            let xml = "='/run/a;$(id)&apos;,b&lt;c>&amp;' m";
            assert!(text.contains(xml), "{text}");
            let qemu = text.lines().filter(|line| line.starts_with('-'));
            // Joined, since each goes on in the next.
            let qemu: Vec<&str> = qemu.map(|line| line.trim_end_matches('\\')).collect();
            let script = format!("printf '%s\\n' {}", qemu.join(" "));
            let mut sh = std::process::Command::new("sh");
            let said = sh.args(["-c", &script]).output().unwrap();
            assert!(said.status.success(), "{script}: {said:?}");
            let said = String::from_utf8(said.stdout).unwrap();
            let values: Vec<&str> = said.lines().filter(|word| !word.starts_with('-')).collect();
            let of_id = "a;$(id)',,b<c>&";
            let path = format!("=/run/{of_id},");
            assert!(values.iter().any(|value| value.contains(&path)), "{said}");
            let devices = values
                .iter()
                .filter(|value| value.starts_with("virtio-net"));
            for device in devices {
                assert!(device.contains(&format!(",netdev=net-{of_id},")), "{said}");
            }
            assert!(!said.contains("uid="), "{said}");
        }
    }
}
