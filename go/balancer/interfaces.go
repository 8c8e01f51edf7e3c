package balancer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is an interface as the program needs to know it.
type Link struct {
	// Ifindex of the interface that packets come in by.
	Ifindex uint32
	// MAC is ours there: frames to others are not ours.
	MAC MAC
	// Out is what NextHop.Ifindex says for it: of a bond's port the bond. 0: itself.
	Out uint32
}

// Program is the balancer's in a mode, for who attaches it himself or runs a trial of it
// ([ebpf.Program.Run]): TC, or any other for XDP. It knows the interfaces that [Balancer.SetLink]
// says.
func (b *Balancer) Program(mode Mode) (*ebpf.Program, error) {
	if err := b.lock(); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
	if mode == TC {
		return b.program.forTC()
	}
	return b.program.xdp, nil
}

// SetLink takes packets of an interface, wherever the program is attached, or learns that its MAC
// is another. Interfaces of [Balancer.CreateInterface] are told already.
func (b *Balancer) SetLink(link Link) error {
	if err := b.lock(); err != nil {
		return err
	}
	defer b.mu.Unlock()
	if link.Ifindex == 0 {
		return fmt.Errorf("%w: a link has index 0, which is no interface's", ErrInvalid)
	}
	if link.Out == 0 {
		link.Out = link.Ifindex
	}
	return b.setLink(linkEntry{Ifindex: link.Ifindex, Out: link.Out, Mac: link.MAC})
}

// RemoveLink leaves an interface's packets alone.
func (b *Balancer) RemoveLink(ifindex uint32) error {
	if err := b.lock(); err != nil {
		return err
	}
	defer b.mu.Unlock()
	return b.forgetLink(ifindex)
}

func (b *Balancer) setLink(entry linkEntry) error {
	if b.links[entry.Ifindex] == entry {
		return nil
	}
	for other := range b.links {
		if other != entry.Ifindex && other%links == entry.Ifindex%links {
			return fmt.Errorf("%w: interface %d cannot be balanced beside interface %d: their "+
				"indices end in the same byte", ErrInvalid, entry.Ifindex, other)
		}
	}
	if err := b.program.maps["links"].Put(entry.Ifindex%links, entry); err != nil {
		return fmt.Errorf("the load balancer's map links: %w", err)
	}
	b.links[entry.Ifindex] = entry
	return nil
}

func (b *Balancer) forgetLink(ifindex uint32) error {
	if _, is := b.links[ifindex]; !is {
		return nil
	}
	if err := b.program.maps["links"].Put(ifindex%links, linkEntry{}); err != nil {
		return fmt.Errorf("the load balancer's map links: %w", err)
	}
	delete(b.links, ifindex)
	return nil
}

// Interfaces that are balanced on, with their modes; AnyMode: it is not there at the moment.
func (b *Balancer) Interfaces() ([]Interface, error) {
	info, err := b.Info()
	return info.Interfaces, err
}

// CreateInterface runs the balancer on an interface of its network namespace (see [New]): a NIC
// with the VLANs on it, a bond with its ports, a veth, TAP or bridge. It gives the interface with
// the mode in force. A balancer that follows the kernel takes an interface that is removed and made
// again under its name again.
//
// It fails where there is no Ethernet interface of that name (ErrNotFound), it is balanced on
// already (ErrExists), somebody else's program runs there (ErrOccupied), or its driver refuses.
func (b *Balancer) CreateInterface(wanted Interface) (Interface, error) {
	if err := b.lock(); err != nil {
		return Interface{}, err
	}
	defer b.mu.Unlock()
	if wanted.Mode > TC {
		return Interface{}, fmt.Errorf("%w: interface %q: %v is none", ErrInvalid, wanted.Name,
			wanted.Mode)
	}
	if b.find(wanted.Name) >= 0 {
		return Interface{}, fmt.Errorf("%w: interface %q is balanced on already", ErrExists,
			wanted.Name)
	}
	one := &attached{name: wanted.Name, wanted: wanted.Mode}
	err := b.namespace.within(func() error {
		view, err := look()
		if err != nil {
			return err
		}
		return b.take(one, view)
	})
	if err != nil {
		return Interface{}, err
	}
	b.attached = append(b.attached, one)
	return Interface{Name: wanted.Name, Mode: one.mode}, nil
}

// RemoveInterface gives an interface back to the kernel. Where the balancer's network namespace
// cannot be entered, as for want of a descriptor, it is balanced on as before, and another call may
// do it.
func (b *Balancer) RemoveInterface(name string) error {
	if err := b.lock(); err != nil {
		return err
	}
	defer b.mu.Unlock()
	at := b.find(name)
	if at < 0 {
		return fmt.Errorf("%w: nothing is balanced on interface %q", ErrNotFound, name)
	}
	return b.namespace.within(func() error {
		one := b.attached[at]
		b.attached = slices.Delete(b.attached, at, at+1)
		return b.leave(one)
	})
}

// ReattachBPF takes the program off an interface and puts it there again: for drivers that lose it
// when a link goes down. Flows go on.
func (b *Balancer) ReattachBPF(name string) error {
	if err := b.lock(); err != nil {
		return err
	}
	defer b.mu.Unlock()
	at := b.find(name)
	if at < 0 {
		return fmt.Errorf("%w: nothing is balanced on interface %q", ErrNotFound, name)
	}
	return b.namespace.within(func() error {
		view, err := look()
		if err != nil {
			return err
		}
		if err := b.leave(b.attached[at]); err != nil {
			return err
		}
		return b.take(b.attached[at], view)
	})
}

func (b *Balancer) find(name string) int {
	return slices.IndexFunc(b.attached, func(one *attached) bool { return one.name == name })
}

// attached is an interface that programs run on.
type attached struct {
	name   string
	wanted Mode
	// ifindex and mode are zero while it is not there.
	ifindex uint32
	mode    Mode
	// holds are by device: the interface, or a bond's ports.
	holds map[uint32]hold
	// byPorts: a bond's programs run on its ports and not on itself. In generic mode the kernel
	// takes VLAN tags out of frames between port and bond, and merges packets at a port that has no
	// program.
	byPorts bool
	// tags are NICs that are told to leave VLAN tags in frames, as they were before.
	tags map[uint32]bool
}

// take runs the balancer on an interface that it does not run on: whole, or not at all.
func (b *Balancer) take(one *attached, view *view) error {
	link := view.named(one.name)
	if link == nil || !isEthernet(link) {
		return fmt.Errorf("%w: there is no Ethernet interface %q", ErrNotFound, one.name)
	}
	one.ifindex = uint32(link.Attrs().Index)
	one.holds, one.tags = map[uint32]hold{}, map[uint32]bool{}
	err := b.run(one, view)
	if err == nil {
		err = b.setLinks(one, view)
	}
	if err != nil {
		return errors.Join(err, b.leave(one))
	}
	return nil
}

func (b *Balancer) run(one *attached, view *view) error {
	if one.wanted == TC || one.wanted == AnyMode && view.ofBuffers(one.ifindex) {
		tc, err := b.program.forTC()
		if err == nil {
			err = one.hold(tc, one.ifindex, TC)
		}
		if err == nil || one.wanted == TC || errors.Is(err, ErrOccupied) {
			return err
		}
		// A kernel without tcx, and without what filters need: XDP, as far as that goes.
		b.options.Log.Info("no tc for programs", "interface", one.name, "error", err)
	}
	if err := one.keepTags(view); err != nil {
		return err
	}
	if one.wanted != Generic {
		err := one.hold(b.program.xdp, one.ifindex, Native)
		if err == nil || one.wanted == Native || errors.Is(err, ErrOccupied) {
			return err
		}
	}
	if one.byPorts = view.isBond(one.ifindex); !one.byPorts {
		return one.hold(b.program.xdp, one.ifindex, Generic)
	}
	one.mode = Generic
	for _, port := range view.ports(one.ifindex) {
		if err := one.hold(b.program.xdp, port, Generic); err != nil {
			return err
		}
	}
	return nil
}

// setLinks says to the program what its interfaces are now.
func (b *Balancer) setLinks(one *attached, view *view) error {
	mac, known := view.macOf(one.ifindex)
	if !known {
		return fmt.Errorf("%w: there is no Ethernet interface %q", ErrNotFound, one.name)
	}
	now := map[uint32]linkEntry{}
	if !one.byPorts {
		now[one.ifindex] = linkEntry{Ifindex: one.ifindex, Out: one.ifindex, Mac: mac}
	}
	for _, port := range view.ports(one.ifindex) {
		entry := linkEntry{Ifindex: port, Out: one.ifindex, Mac: mac}
		if one.byPorts {
			// Such ports are interfaces of their own: what goes out of the bond is for it to say.
			entry.Out = port
		}
		now[port] = entry
	}
	for _, entry := range b.linksOf(one) {
		if _, stays := now[entry.Ifindex]; !stays {
			if err := b.forgetLink(entry.Ifindex); err != nil {
				return err
			}
		}
	}
	for _, entry := range now {
		if err := b.setLink(entry); err != nil {
			return err
		}
	}
	return nil
}

func (b *Balancer) linksOf(one *attached) []linkEntry {
	var all []linkEntry
	for ifindex, entry := range b.links {
		_, held := one.holds[ifindex]
		if ifindex == one.ifindex || entry.Out == one.ifindex || held {
			all = append(all, entry)
		}
	}
	return all
}

// leave gives an interface back.
func (b *Balancer) leave(one *attached) error {
	var failed error
	for _, entry := range b.linksOf(one) {
		failed = errors.Join(failed, b.forgetLink(entry.Ifindex))
	}
	return errors.Join(failed, one.close())
}

// followInterfaces keeps the balancer's interfaces as the kernel has them.
func (b *Balancer) followInterfaces(view *view) {
	for _, one := range b.attached {
		link := view.named(one.name)
		if link == nil || uint32(link.Attrs().Index) != one.ifindex {
			if one.ifindex != 0 {
				if err := b.leave(one); err != nil {
					b.options.Log.Warn("cannot leave", "interface", one.name, "error", err)
				}
			}
			if link == nil {
				continue
			}
			if err := b.take(one, view); err != nil {
				b.options.Log.Warn("cannot take again", "interface", one.name, "error", err)
				continue
			}
		}
		if err := b.followOne(one, view); err != nil {
			b.options.Log.Warn("cannot follow", "interface", one.name, "error", err)
		}
	}
}

func (b *Balancer) followOne(one *attached, view *view) error {
	var failed error
	if one.mode != TC {
		failed = one.keepTags(view)
	}
	if one.byPorts {
		ports := view.ports(one.ifindex)
		for device, held := range one.holds {
			if !slices.Contains(ports, device) {
				failed = errors.Join(failed, b.forgetLink(device), held.Close())
				delete(one.holds, device)
			}
		}
		for _, port := range ports {
			if _, is := one.holds[port]; !is {
				failed = errors.Join(failed, one.hold(b.program.xdp, port, Generic))
			}
		}
	}
	return errors.Join(failed, b.setLinks(one, view))
}

func (a *attached) hold(program *ebpf.Program, device uint32, mode Mode) error {
	held, err := attach(program, device, mode)
	if err != nil {
		return err
	}
	a.holds[device], a.mode = held, mode
	return nil
}

// keepTags asks NICs to leave VLAN tags in frames for as long as there are VLANs on them: no XDP
// program sees tags that lie beside the frame.
func (a *attached) keepTags(view *view) error {
	nics := view.trunks(a.ifindex)
	for nic, before := range a.tags {
		if !slices.Contains(nics, nic) {
			stripTags(view.name(nic), before)
			delete(a.tags, nic)
		}
	}
	for _, nic := range nics {
		if _, is := a.tags[nic]; is {
			continue
		}
		name := view.name(nic)
		strips := stripsTags(name)
		if strips && !stripTags(name, false) {
			return fmt.Errorf("%w: %q takes VLAN tags out of frames and cannot be kept from it "+
				"(ethtool -K %s rxvlan off)", ErrInvalid, name, name)
		}
		a.tags[nic] = strips
	}
	return nil
}

func (a *attached) close() error {
	var failed error
	for _, held := range a.holds {
		failed = errors.Join(failed, held.Close())
	}
	for nic, before := range a.tags {
		if link, err := netlink.LinkByIndex(int(nic)); err == nil && before {
			stripTags(link.Attrs().Name, true)
		}
	}
	a.holds, a.tags, a.ifindex, a.mode, a.byPorts = nil, nil, 0, AnyMode, false
	return failed
}

// release ends the programs without the namespace of their interfaces: VLAN tags stay in frames
// there, and filters stay without effect.
func (a *attached) release() error {
	var failed error
	for _, held := range a.holds {
		if filter, is := held.(*filter); is {
			failed = errors.Join(failed, filter.release())
		} else {
			failed = errors.Join(failed, held.Close())
		}
	}
	return failed
}

// view is what the kernel says of links, at one time.
type view struct {
	links map[uint32]netlink.Link
}

// dumpsMax is how often the kernel is asked for a list before it is said that it cannot be had.
const dumpsMax = 8

// whole asks for a list until nothing has changed while the kernel told it: something may be
// missing else.
func whole[T any](list func() (T, error)) (T, error) {
	for tries := 1; ; tries++ {
		all, err := list()
		if tries == dumpsMax || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
}

func look() (*view, error) {
	all, err := whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("the kernel does not list its interfaces: %w", err)
	}
	view := &view{links: map[uint32]netlink.Link{}}
	for _, link := range all {
		view.links[uint32(link.Attrs().Index)] = link
	}
	return view, nil
}

func (v *view) named(name string) netlink.Link {
	for _, link := range v.links {
		if link.Attrs().Name == name {
			return link
		}
	}
	return nil
}

func (v *view) name(ifindex uint32) string {
	if link := v.links[ifindex]; link != nil {
		return link.Attrs().Name
	}
	return ""
}

func isEthernet(link netlink.Link) bool {
	return link.Attrs().EncapType == "ether" && len(link.Attrs().HardwareAddr) == 6
}

func (v *view) isBond(ifindex uint32) bool {
	_, is := v.links[ifindex].(*netlink.Bond)
	return is
}

// ports of a bond that it takes packets from: what a backup port sees, the active one sees too.
// Others have none.
func (v *view) ports(ifindex uint32) []uint32 {
	var ports []uint32
	if !v.isBond(ifindex) {
		return nil
	}
	for index, link := range v.links {
		if uint32(link.Attrs().MasterIndex) != ifindex {
			continue
		}
		slave, is := link.Attrs().Slave.(*netlink.BondSlave)
		if !is || slave.State == netlink.BondStateActive {
			ports = append(ports, index)
		}
	}
	slices.Sort(ports)
	return ports
}

// macOf an interface: what is for a bridge's or a bond's host comes by its ports, to the bridge's
// or bond's own MAC.
func (v *view) macOf(ifindex uint32) (MAC, bool) {
	link := v.links[ifindex]
	if link == nil {
		return MAC{}, false
	}
	if master := v.links[uint32(link.Attrs().MasterIndex)]; master != nil {
		if master.Type() == "bridge" || master.Type() == "bond" {
			link = master
		}
	}
	if !isEthernet(link) {
		return MAC{}, false
	}
	return MAC(link.Attrs().HardwareAddr), true
}

// nics are what an interface's packets come by: a bond's ports, or itself.
func (v *view) nics(ifindex uint32) []uint32 {
	if !v.isBond(ifindex) {
		return []uint32{ifindex}
	}
	var nics []uint32
	for index, link := range v.links {
		if uint32(link.Attrs().MasterIndex) == ifindex {
			nics = append(nics, index)
		}
	}
	slices.Sort(nics)
	return nics
}

// trunks are the NICs below an interface whose frames have VLAN tags that the kernel knows of.
func (v *view) trunks(ifindex uint32) []uint32 {
	link := v.links[ifindex]
	if link == nil {
		return nil
	}
	for _, other := range v.links {
		vlan, is := other.(*netlink.Vlan)
		parent := uint32(0)
		if is {
			parent = uint32(vlan.ParentIndex)
		}
		master := uint32(link.Attrs().MasterIndex)
		if is && (parent == ifindex || master != 0 && parent == master) {
			return v.nics(ifindex)
		}
	}
	return nil
}

// ofBuffers says whether an interface's packets are buffers of the kernel's from the start, with
// checksums that are only begun and segments not cut yet: veth, TAP, bridges, and virtio-net as
// long as its other side may leave checksums begun.
func (v *view) ofBuffers(ifindex uint32) bool {
	for _, nic := range v.nics(ifindex) {
		link := v.links[nic]
		switch link.Type() {
		// A bond is what its ports are, a VLAN what it lies on, a DSA port a switch's socket.
		case "bond", "vlan", "dsa":
		case "device":
			name := link.Attrs().Name
			if driverOf(name) == "virtio_net" && vouchesForChecksums(name) {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// maxDepth is how many devices the kernel lets lie on one another (MAX_NEST_DEV). What it says is
// of several moments, and might lead in a circle.
const maxDepth = 8

// carrier is the device that takes frames to a MAC: below VLAN interfaces, with their tags from the
// outermost on, and of a bridge the port behind which that MAC was seen. Nil: it is down, not
// Ethernet, tagged otherwise than the program does, or the bridge has seen the MAC behind no port.
// Anybody on a bridge's segment can answer with the bridge's own MAC.
func (v *view) carrier(device netlink.Link, mac MAC) (netlink.Link, [2]uint16) {
	var tags []uint16
	link := device
	for depth := 0; link != nil && depth <= maxDepth; depth++ {
		if link.Attrs().RawFlags&unix.IFF_UP == 0 || link.Attrs().EncapType != "ether" {
			break
		}
		vlan, is := link.(*netlink.Vlan)
		switch {
		case is && (vlan.VlanProtocol != netlink.VLAN_PROTOCOL_8021Q || len(tags) == 2):
			return nil, [2]uint16{}
		case is:
			tags = append([]uint16{uint16(vlan.VlanId)}, tags...)
			link = v.links[uint32(vlan.ParentIndex)]
		case link.Type() == "bridge":
			link = v.links[bridgePort(link.Attrs().Index, mac)]
		default:
			var all [2]uint16
			copy(all[:], tags)
			return link, all
		}
	}
	return nil, [2]uint16{}
}

// bridgePort is behind which of its ports a bridge has seen a MAC; of a bridge that filters VLANs,
// in the untagged one. 0: behind none, or it is the bridge's own.
func bridgePort(bridge int, mac MAC) uint32 {
	entries, err := whole(func() ([]netlink.Neigh, error) {
		return netlink.NeighListExecute(netlink.Ndmsg{Family: unix.AF_BRIDGE})
	})
	if err != nil {
		return 0
	}
	for _, entry := range entries {
		// What a bridge has of its own it gives with its own index.
		if entry.MasterIndex == bridge && entry.LinkIndex != bridge && entry.Vlan == 0 &&
			slices.Equal(entry.HardwareAddr, mac[:]) {
			return uint32(entry.LinkIndex)
		}
	}
	return 0
}

// addrOf turns an address of netlink's into ours.
func addrOf(ip []byte) netip.Addr {
	address, _ := netip.AddrFromSlice(ip)
	return address.Unmap()
}
