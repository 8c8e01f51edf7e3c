//! What a guest or a container needs to use a NIC: lines to copy, for `nic add --how` and
//! `nic show --how`.

use api::v1;

/// The lines for one NIC, each kind of user behind a comment.
pub fn lines(status: &v1::NicStatus) -> String {
    let nic = status.nic.clone().unwrap_or_default();
    let (id, mac, path) = (&nic.id, &nic.mac, &status.path);
    match nic.kind() {
        v1::NicKind::Unspecified | v1::NicKind::VhostUser => vhost_user(status, id, mac, path),
        v1::NicKind::Tap => {
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
                path if path.starts_with('/') => format!("nsenter --net={path}"),
                name => format!("ip netns exec {name}"),
            };
            format!(
                "# it is in the container: {name}, with its addresses and routes\n\
                 {enter} ip addr show dev {name}\n\
                 # the same from the host's side\n\
                 tcpdump -n -e -i {path}\n",
                name = veth.ifname
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
    let qemu = |vhost: &str| {
        format!(
            "-netdev tap,id=net-{id},ifname={path},script=no,downscript=no,vhost={vhost}{queues} \
             \\\n\
             -device virtio-net-pci,netdev=net-{id},mac={mac}{mq}{mtu}\n"
        )
    };
    let (on, off) = (qemu("on"), qemu("off"));
    format!(
        "# QEMU where the host has /dev/vhost-net (module vhost_net): the kernel moves the frames\n\
         {on}\
         # QEMU where it has not, or QEMU may not open it: QEMU moves them, slower\n\
         {off}\
         # libvirt, which takes vhost-net where it is\n\
         <interface type='ethernet'>\n\
         \x20 <mac address='{mac}'/>\n\
         \x20 <target dev='{path}' managed='no'/>\n\
         \x20 <model type='virtio'/>\n\
         </interface>\n\
         # Firecracker, PUT /network-interfaces/eth0\n\
         {{\"iface_id\": \"eth0\", \"guest_mac\": \"{mac}\", \"host_dev_name\": \"{path}\"}}\n"
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
    format!(
        "# QEMU; 2G is the guest's memory\n\
         -object memory-backend-memfd,id=mem,size=2G,share=on -machine memory-backend=mem \\\n\
         -chardev socket,id={id},path={path},{qemu} \\\n\
         -netdev vhost-user,id=net-{id},chardev={id} \\\n\
         -device virtio-net-pci,netdev=net-{id},mac={mac}\n\
         # libvirt; and in the domain <memoryBacking><source type='memfd'/><access \
         mode='shared'/></memoryBacking>\n\
         <interface type='vhostuser'>\n\
         \x20 <mac address='{mac}'/>\n\
         \x20 <source type='unix' path='{path}' mode='{mode}'/>\n\
         \x20 <model type='virtio'/>\n\
         </interface>\n"
    )
}
