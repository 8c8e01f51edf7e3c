package balancer

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// What needs a kernel runs as root in a network namespace of its own, which
// `cargo test -p butterfly-tests --test go_balancer` makes. The packets' tests are
// crates/balancer/tests/rows.

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 || os.Getenv("BUTTERFLY_TEST_NAMESPACE") == "" {
		t.Skip("needs a namespace of its own: cargo test -p butterfly-tests --test go_balancer")
	}
}

func ip(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", line, err, out)
	}
	return string(out)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, err, kind error, says string) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), says) {
		t.Errorf("%v: not %v with %q", err, kind, says)
	}
}

func made(t *testing.T, options Options) *Balancer {
	t.Helper()
	if options.MaxFlows == 0 {
		options.MaxFlows, options.MaxServices, options.MaxDestinations = 1024, 16, 64
	}
	b, err := New(options)
	ok(t, err)
	t.Cleanup(func() { ok(t, b.Close()) })
	return b
}

var (
	web     = Service{Address: netip.MustParseAddr("192.0.2.80"), Port: 443, Protocol: TCP}
	servers = func() (all []netip.Addr) {
		for n := range byte(6) {
			all = append(all, netip.AddrFrom4([4]byte{10, 1, 2, n + 1}))
		}
		return all
	}()
)

func destinations(count int) []Destination {
	var all []Destination
	for _, address := range servers[:count] {
		all = append(all, Destination{Address: address, Weight: 1})
	}
	return all
}

// Everything that cannot be is refused in a sentence with the value in it.
func TestBadInputIsRefused(t *testing.T) {
	for says, options := range map[string]Options{
		"MaxFlows is 5,":               {MaxFlows: 5},
		"MaxServices is 65535,":        {MaxServices: 65535},
		"Idle (seconds) is 1,":         {Idle: time.Second},
		"Settle (seconds) is 360000,":  {Settle: 100 * time.Hour},
		"Source4 is 2001:db8::1,":      {Source4: netip.MustParseAddr("2001:db8::1")},
		"Source6 is 192.0.2.1,":        {Source6: netip.MustParseAddr("192.0.2.1")},
		"NextHops is 7,":               {NextHops: 7},
		"MaxDestinations is 65535,":    {MaxDestinations: 65535},
		"which is not within 5 to 612": {Idle: 18 * time.Hour},
	} {
		_, err := New(options)
		is(t, err, ErrInvalid, says)
	}
	for _, bad := range []string{
		"0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1",
		"::ffff:1.2.3.4", "fe80::1%eth0",
	} {
		address := netip.MustParseAddr(bad)
		is(t, Service{Address: address, Protocol: TCP}.check(), ErrInvalid, bad)
		is(t, Destination{Address: address}.check(), ErrInvalid, bad)
	}
	is(t, Service{}.check(), ErrInvalid, "invalid IP")
	is(t, Service{Address: web.Address, Protocol: 1}.check(), ErrInvalid, "1 is no protocol")
	is(t, Destination{Address: servers[0], State: 9}.check(), ErrInvalid, "state 9")
	is(t, Destination{Address: servers[0], Encapsulation: 9}.check(), ErrInvalid, "encapsulation 9")
	is(t, Destination{Address: servers[0], TunnelPort: 5}.check(), ErrInvalid, "tunnel port 5")
	hop := NextHop{Ifindex: 1, MTU: 1500}
	is(t, NextHop{MTU: 1500}.check(servers[0]), ErrInvalid, "interface 0")
	is(t, NextHop{Ifindex: 1}.check(servers[0]), ErrInvalid, "MTU of 0")
	hop.VLANs = [2]uint16{0, 5}
	is(t, hop.check(servers[0]), ErrInvalid, "inner VLAN 5")
	hop.VLANs = [2]uint16{4095}
	is(t, hop.check(servers[0]), ErrInvalid, "VLAN 4095")
}

func TestServicesReadAsPeopleWriteThem(t *testing.T) {
	for want, one := range map[string]Service{
		"192.0.2.80:443/tcp": web,
		"192.0.2.80:*/udp":   {Address: web.Address, Protocol: UDP},
		"[2001:db8::1]:53/sctp": {Address: netip.MustParseAddr("2001:db8::1"), Port: 53,
			Protocol: SCTP},
	} {
		if one.String() != want {
			t.Errorf("%v is not %s", one, want)
		}
	}
}

func TestNumbersStayAndComeBackLate(t *testing.T) {
	one := newNumbers[int](4)
	order := func(a, b int) int { return a - b }
	expect := func(did bool, want map[int]uint16) {
		t.Helper()
		for owner, number := range want {
			if one.taken[owner] != number {
				t.Errorf("%d has %d, not %d", owner, one.taken[owner], number)
			}
		}
		if !did {
			t.Error("there was room")
		}
	}
	expect(one.assign([]int{20, 10}, order), map[int]uint16{10: 1, 20: 2})
	expect(one.assign([]int{20}, order), nil)
	expect(one.assign([]int{20, 30}, order), map[int]uint16{10: 0, 20: 2, 30: 3})
	expect(one.assign([]int{5, 20, 30}, order), map[int]uint16{5: 1})
	if one.assign([]int{5, 6, 20, 30}, order) || one.taken[5] != 1 {
		t.Error("room for three, and nothing has changed")
	}
}

// One next hop of a multipath route for each target, by weight.
func TestTargetsAreSharedOutByWeight(t *testing.T) {
	light, target := 0, netip.MustParseAddr("10.1.0.0")
	for range 1000 {
		target = target.Next()
		if share(target, []step{{weight: 1}, {weight: 3}}) == 0 {
			light++
		}
		if share(target, []step{{weight: 5}}) != 0 {
			t.Fatal("there is one only")
		}
	}
	if light < 200 || light > 300 || share(target, nil) != -1 {
		t.Errorf("%d of 1000 for a weight of 1 in 4", light)
	}
}

// A VLAN in a VLAN on a bond: frames leave by the bond with both tags, the outer one first; and the
// NICs below are those of the bond.
func TestFramesToVLANsLeaveByTheirDevice(t *testing.T) {
	attrs := func(index, parent, master int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, ParentIndex: parent, MasterIndex: master,
			EncapType: "ether",
			RawFlags:  1, HardwareAddr: []byte{2, 0, 0, 0, 0, byte(index)}}
	}
	vlan := func(index, parent, id int) *netlink.Vlan {
		return &netlink.Vlan{LinkAttrs: attrs(index, parent, 0), VlanId: id,
			VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	}
	backup := attrs(3, 0, 1)
	backup.Slave = &netlink.BondSlave{State: netlink.BondStateBackup}
	all := &view{links: map[uint32]netlink.Link{
		1: &netlink.Bond{LinkAttrs: attrs(1, 0, 0)},
		2: &netlink.Device{LinkAttrs: attrs(2, 0, 1)},
		3: &netlink.Device{LinkAttrs: backup},
		4: vlan(4, 1, 100), 5: vlan(5, 4, 7), 6: vlan(6, 5, 8),
	}}
	device, tags := all.carrier(all.links[5], MAC{})
	if device != all.links[1] || tags != [2]uint16{100, 7} {
		t.Errorf("%v with %v", device, tags)
	}
	if device, _ := all.carrier(all.links[6], MAC{}); device != nil {
		t.Error("three tags are more than the program writes")
	}
	if nics := all.trunks(1); len(nics) != 2 {
		t.Errorf("VLANs are on a bond of %v", nics)
	}
	if ports := all.ports(1); len(ports) != 1 || ports[0] != 2 {
		t.Errorf("what a backup port hears is left alone, not %v", ports)
	}
	if mac, _ := all.macOf(2); mac[5] != 1 {
		t.Error("a bond's port has the bond's MAC")
	}
	if all.trunks(5) == nil || all.trunks(6) != nil {
		t.Error("there is a VLAN on 5 and none on 6")
	}
}

func TestOperationsAreWholeOrNothing(t *testing.T) {
	needRoot(t)
	b := made(t, Options{NextHops: Told})
	ok(t, b.CreateService(web))
	is(t, b.CreateService(web), ErrExists, "192.0.2.80:443/tcp")
	ok(t, b.CreateDestination(web, destinations(1)[0]))
	is(t, b.CreateDestination(web, destinations(1)[0]), ErrExists, "10.1.2.1")
	is(t, b.UpdateDestination(web, destinations(2)[1]), ErrNotFound, "10.1.2.2")
	is(t, b.RemoveDestination(web, destinations(2)[1]), ErrNotFound, "10.1.2.2")
	other := web
	other.Port = 80
	is(t, b.RemoveService(other), ErrNotFound, "192.0.2.80:80/tcp")
	is(t, b.UpdateService(other), ErrNotFound, "192.0.2.80:80/tcp")
	is(t, b.CreateDestination(other, destinations(1)[0]), ErrNotFound, "192.0.2.80:80/tcp")
	_, err := b.Destinations(other)
	is(t, err, ErrNotFound, "192.0.2.80:80/tcp")
	_, err = b.VIP(servers[0])
	is(t, err, ErrNotFound, "10.1.2.1")

	var many Config
	for port := range uint16(17) {
		many.Services = append(many.Services, ServiceConfig{Service: Service{Address: web.Address,
			Port: port + 1, Protocol: UDP}})
	}
	is(t, b.SetConfig(many), ErrFull, "room for 16 services, not for 17")
	many.Services = append(many.Services[:2], many.Services[0])
	is(t, b.SetConfig(many), ErrInvalid, "twice")
	is(t, b.SetService(web, destinations(1)[0], destinations(1)[0]), ErrInvalid, "10.1.2.1 twice")
	config, err := b.Config()
	ok(t, err)
	if len(config.Services) != 1 || len(config.Services[0].Destinations) != 1 {
		t.Errorf("what was refused has changed %v", config)
	}

	is(t, b.SetNextHops(map[netip.Addr]NextHop{servers[0]: {}}), ErrInvalid, "10.1.2.1")
	ok(t, b.SetNextHops(map[netip.Addr]NextHop{servers[0]: {Ifindex: 1, MTU: 1500, Direct: true}}))
	all, err := b.Destinations(web)
	ok(t, err)
	if len(all) != 1 || !all[0].Reachable || all[0].NextHop.MTU != 1500 {
		t.Errorf("%+v", all)
	}
	sticky := web
	sticky.Sticky = true
	ok(t, b.UpdateService(sticky))
	one, err := b.Service(web)
	ok(t, err)
	if !one.Service.Sticky || !one.Available {
		t.Errorf("%+v", one)
	}
	ok(t, b.UpdateDestination(web, Destination{Address: servers[0]}))
	one, err = b.Service(web)
	ok(t, err)
	if one.Available {
		t.Error("a weight of 0 is draining")
	}

	is(t, b.SetLink(Link{}), ErrInvalid, "index 0")
	ok(t, b.SetLink(Link{Ifindex: 1}))
	is(t, b.SetLink(Link{Ifindex: 257}), ErrInvalid,
		"interface 257 cannot be balanced beside interface 1")
	ok(t, b.Close())
	is(t, b.CreateService(web), ErrClosed, "closed")
	ok(t, b.Close())
}

func TestInterfacesAreTakenAndGivenBack(t *testing.T) {
	needRoot(t)
	ip(t, "link add taken0 type veth peer name far0")
	ip(t, "link set taken0 up")
	ip(t, "link set far0 up")
	t.Cleanup(func() { ip(t, "link del taken0") })
	b := made(t, Options{})
	_, err := b.CreateInterface(Interface{Name: "none0"})
	is(t, err, ErrNotFound, `"none0"`)
	_, err = b.CreateInterface(Interface{Name: "lo"})
	is(t, err, ErrNotFound, `"lo"`)
	is(t, b.RemoveInterface("taken0"), ErrNotFound, `"taken0"`)
	for _, mode := range []Mode{AnyMode, TC, Native, Generic} {
		taken, err := b.CreateInterface(Interface{Name: "taken0", Mode: mode})
		ok(t, err)
		want := mode
		if mode == AnyMode {
			want = TC
		}
		if taken.Mode != want {
			t.Errorf("%v has become %v", mode, taken.Mode)
		}
		_, err = b.CreateInterface(Interface{Name: "taken0"})
		is(t, err, ErrExists, `"taken0"`)
		ok(t, b.ReattachBPF("taken0"))
		shown := ip(t, "-details link show taken0")
		if strings.Contains(shown, "prog/xdp") != (want != TC) {
			t.Errorf("%v: %s", want, shown)
		}
		if want == Native {
			other := made(t, Options{NextHops: Told})
			_, err := other.CreateInterface(Interface{Name: "taken0", Mode: Native})
			is(t, err, ErrOccupied, `"balancer"`)
		}
		ok(t, b.RemoveInterface("taken0"))
		if shown := ip(t, "-details link show taken0"); strings.Contains(shown, "prog/xdp") ||
			len(b.links) != 0 {
			t.Errorf("it is not given back: %s", shown)
		}
	}

	// One that goes and comes back under its name.
	_, err = b.CreateInterface(Interface{Name: "taken0"})
	ok(t, err)
	there := func(want Mode) {
		t.Helper()
		until(t, func() bool {
			all, err := b.Interfaces()
			ok(t, err)
			return all[0].Mode == want
		})
	}
	ip(t, "link del taken0")
	there(AnyMode)
	ip(t, "link add taken0 type veth peer name far0")
	there(TC)
}

func until(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to pass")
		}
	}
}

// Where the kernel has no links for tc: a filter that is there, and then not.
func TestFilters(t *testing.T) {
	needRoot(t)
	ip(t, "link add filtered0 type veth peer name far1")
	t.Cleanup(func() { ip(t, "link del filtered0") })
	b := made(t, Options{NextHops: Told})
	program, err := b.Program(TC)
	ok(t, err)
	device, err := netlink.LinkByName("filtered0")
	ok(t, err)
	shown := func() string {
		out, err := exec.Command("tc", "filter", "show", "dev", "filtered0",
			"ingress").CombinedOutput()
		ok(t, err)
		return string(out)
	}
	for range 2 {
		held, err := attachFilter(program, uint32(device.Attrs().Index))
		ok(t, err)
		if text := shown(); !strings.Contains(text, " pass ") {
			t.Errorf("there is no filter: %s", text)
		}
		_, err = b.CreateInterface(Interface{Name: "filtered0", Mode: TC})
		is(t, err, ErrOccupied, "at tc ingress")
		_, err = attachFilter(program, uint32(device.Attrs().Index))
		is(t, err, ErrOccupied, "of another process")
		if text := shown(); !strings.Contains(text, " pass ") {
			t.Errorf("who was refused has taken it away: %s", text)
		}
		ok(t, held.Close())
		if text := shown(); text != "" {
			t.Errorf("the filter is still there: %s", text)
		}
	}
}

// What a dead process has left is taken; somebody else's filter or program is not.
func TestWhoIsAtTCIsLeftThere(t *testing.T) {
	needRoot(t)
	ip(t, "link add shared0 type veth peer name far5")
	t.Cleanup(func() { ip(t, "link del shared0") })
	b, other := made(t, Options{NextHops: Told}), made(t, Options{NextHops: Told})
	program, err := other.Program(TC)
	ok(t, err)
	device, err := netlink.LinkByName("shared0")
	ok(t, err)
	wanted := Interface{Name: "shared0", Mode: TC}

	held, err := attachFilter(program, uint32(device.Attrs().Index))
	ok(t, err)
	left := held.(*filter)
	ok(t, left.name.close())
	left.name = nil
	_, err = b.CreateInterface(wanted)
	ok(t, err)
	_, err = other.CreateInterface(wanted)
	is(t, err, ErrOccupied, "at tc ingress")
	ok(t, b.RemoveInterface("shared0"))
	ok(t, held.Close())

	foreign := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: device.Attrs().Index,
			Parent: netlink.HANDLE_MIN_INGRESS, Handle: 7, Priority: 9, Protocol: unix.ETH_P_ALL},
		Fd: program.FD(), Name: "foreign", DirectAction: true,
	}
	ok(t, netlink.FilterAdd(foreign))
	_, err = b.CreateInterface(wanted)
	is(t, err, ErrOccupied, "a filter with a program")
	ok(t, netlink.FilterDel(foreign))
	_, err = b.CreateInterface(wanted)
	ok(t, err)
}

func TestACapabilityIsReadOfAStatus(t *testing.T) {
	status := "Name:\tx\nUid:\t1\t2\t3\t4\nCapEff:\t0000000000001000\n"
	if uid, admin := effective(status); uid != 2 || !admin {
		t.Errorf("user %d, %v", uid, admin)
	}
	if _, admin := effective(strings.Replace(status, "1000\n", "2000\n", 1)); admin {
		t.Error("that is another one")
	}
}

// A list that changes while it is told is asked for again, and not for ever.
func TestListsAreTakenWhole(t *testing.T) {
	for _, interrupted := range []int{0, 1, dumpsMax - 1, dumpsMax, 100} {
		asked := 0
		all, err := whole(func() (int, error) {
			asked++
			if asked <= interrupted {
				return asked, netlink.ErrDumpInterrupted
			}
			return asked, nil
		})
		if want := min(interrupted+1, dumpsMax); asked != want || all != want {
			t.Errorf("interrupted %d times: asked %d times", interrupted, asked)
		}
		if (err != nil) != (interrupted >= dumpsMax) {
			t.Errorf("interrupted %d times: %v", interrupted, err)
		}
	}
}

// One that is made in another namespace than the process's, and called from everywhere.
func TestABalancerStaysInTheNamespaceOfItsThread(t *testing.T) {
	needRoot(t)
	// Never unlocked: the thread ends with the test.
	runtime.LockOSThread()
	apart, err := netns.New()
	ok(t, err)
	t.Cleanup(func() { apart.Close() })
	add := func() {
		ip(t, "link add apart0 type veth peer name far6")
		ip(t, "link set apart0 up")
		ip(t, "link set far6 up")
	}
	add()
	ip(t, "addr add 10.1.5.100/24 dev apart0")
	ip(t, "neigh add 10.1.5.1 lladdr 02:00:00:00:00:31 dev apart0 nud permanent")
	server := netip.MustParseAddr("10.1.5.1")
	b := made(t, Options{})
	elsewhere := func(do func() error) {
		t.Helper()
		done := make(chan error)
		go func() { done <- do() }()
		ok(t, <-done)
	}
	elsewhere(func() error {
		_, err := b.CreateInterface(Interface{Name: "apart0"})
		return err
	})
	elsewhere(func() error { return b.SetService(web, Destination{Address: server, Weight: 1}) })
	ok(t, b.WaitReachable(t.Context()))
	if hop := b.NextHops()[server]; hop.MAC.String() != "02:00:00:00:00:31" {
		t.Errorf("%+v", hop)
	}
	there := func(want Mode) {
		t.Helper()
		until(t, func() bool {
			all, err := b.Interfaces()
			ok(t, err)
			return all[0].Mode == want
		})
	}
	ip(t, "link del apart0")
	there(AnyMode)
	add()
	there(TC)
	elsewhere(func() error { return b.RemoveInterface("apart0") })
}

// withoutDescriptors does something while the process can open nothing.
func withoutDescriptors(t *testing.T, do func()) {
	t.Helper()
	var limit unix.Rlimit
	ok(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	ok(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	defer func() { ok(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	do()
}

func TestAnInterfaceThatCannotBeLeftIsLeftLater(t *testing.T) {
	needRoot(t)
	ip(t, "link add kept0 type veth peer name far7")
	t.Cleanup(func() { ip(t, "link del kept0") })
	b := made(t, Options{NextHops: Told})
	wanted := Interface{Name: "kept0", Mode: TC}
	_, err := b.CreateInterface(wanted)
	ok(t, err)
	withoutDescriptors(t, func() {
		is(t, b.RemoveInterface("kept0"), unix.EMFILE, "network namespace")
	})
	all, err := b.Interfaces()
	ok(t, err)
	if len(all) != 1 || all[0] != wanted || len(b.links) != 1 {
		t.Errorf("it is balanced on as before: %+v", all)
	}
	ok(t, b.RemoveInterface("kept0"))
	if len(b.links) != 0 {
		t.Errorf("it is given back: %+v", b.links)
	}
	_, err = b.CreateInterface(wanted)
	ok(t, err)
}

// A filter stays where its namespace cannot be entered, but the next one may replace it.
func TestClosedABalancerHoldsNothingWhateverFails(t *testing.T) {
	needRoot(t)
	ip(t, "link add closed0 type veth peer name closed1")
	t.Cleanup(func() { ip(t, "link del closed0") })
	b, other := made(t, Options{NextHops: Told}), made(t, Options{NextHops: Told})
	device, err := netlink.LinkByName("closed0")
	ok(t, err)
	ifindex := uint32(device.Attrs().Index)
	program, err := b.Program(TC)
	ok(t, err)
	held, err := attachFilter(program, ifindex)
	ok(t, err)
	b.attached = append(b.attached, &attached{name: "closed0", wanted: TC, ifindex: ifindex,
		mode: TC, holds: map[uint32]hold{ifindex: held}})
	_, err = b.CreateInterface(Interface{Name: "closed1", Mode: TC})
	ok(t, err)
	for _, name := range []string{"closed0", "closed1"} {
		_, err := other.CreateInterface(Interface{Name: name, Mode: TC})
		is(t, err, ErrOccupied, "at tc ingress")
	}
	withoutDescriptors(t, func() { is(t, b.Close(), unix.EMFILE, "network namespace") })
	ok(t, b.Close())
	for _, name := range []string{"closed0", "closed1"} {
		_, err := other.CreateInterface(Interface{Name: name, Mode: TC})
		ok(t, err)
	}
}

// Without a follower no destination would ever be reached.
func TestWhoCannotFollowTheKernelIsTold(t *testing.T) {
	needRoot(t)
	b := made(t, Options{NextHops: Told})
	own := b.namespace
	// It is no network's, and so cannot be entered as one.
	other, err := netns.GetFromPath("/proc/thread-self/ns/uts")
	ok(t, err)
	b.namespace = namespace{other}
	_, err = follow(b)
	is(t, err, unix.EINVAL, "cannot be entered")
	ok(t, b.namespace.close())
	b.namespace = own
}

// Routes and neighbours as the kernel has them: a neighbour that is known, one behind a gateway,
// and one that is lost.
func TestNextHopsAreTheKernels(t *testing.T) {
	needRoot(t)
	ip(t, "link add near0 type veth peer name far2")
	t.Cleanup(func() { ip(t, "link del near0") })
	ip(t, "link set near0 up")
	ip(t, "link set far2 up")
	ip(t, "addr add 10.1.2.100/24 dev near0")
	ip(t, "neigh add 10.1.2.1 lladdr 02:00:00:00:00:11 dev near0 nud permanent")
	ip(t, "neigh add 10.1.2.2 lladdr 02:00:00:00:00:12 dev near0 nud permanent")
	ip(t, "route add 198.51.100.0/24 via 10.1.2.2 mtu 1400")
	b := made(t, Options{})
	is(t, b.SetNextHops(nil), ErrInvalid, "FollowKernel")
	far := netip.MustParseAddr("198.51.100.7")
	ok(t, b.SetService(web, destinations(1)[0], Destination{Address: far, Weight: 1,
		Encapsulation: IPIP}))
	ok(t, b.WaitReachable(t.Context()))
	hops := b.NextHops()
	near, through := hops[servers[0]], hops[far]
	if near.MAC.String() != "02:00:00:00:00:11" || !near.Direct || near.MTU != 1500 {
		t.Errorf("%+v", near)
	}
	if through.MAC.String() != "02:00:00:00:00:12" || through.Direct || through.MTU != 1400 ||
		through.Source != netip.MustParseAddr("10.1.2.100") {
		t.Errorf("%+v", through)
	}
	ip(t, "neigh replace 10.1.2.1 lladdr 02:00:00:00:00:13 dev near0 nud permanent")
	until(t, func() bool { return b.NextHops()[servers[0]].MAC.String() == "02:00:00:00:00:13" })
	ip(t, "route del 198.51.100.0/24")
	until(t, func() bool { _, is := b.NextHops()[far]; return !is })
	all, err := b.Destinations(web)
	ok(t, err)
	if !all[0].Reachable || all[1].Reachable {
		t.Errorf("%+v", all)
	}
}

// The kernel notes what any "fragmentation needed" says, about packets that nobody has sent. How
// large packets to a server may be is the route's to say, and the interface's.
func TestAStrangerDoesNotSayHowLargePacketsMayBe(t *testing.T) {
	needRoot(t)
	ip(t, "link add near3 type veth peer name far3")
	t.Cleanup(func() { ip(t, "link del near3") })
	ip(t, "link set near3 up")
	ip(t, "link set far3 up")
	ip(t, "addr add 10.1.2.100/24 dev near3")
	ip(t, "neigh add 10.1.2.1 lladdr 02:00:00:00:00:11 dev near3 nud permanent")
	ip(t, "neigh add 10.1.2.2 lladdr 02:00:00:00:00:12 dev near3 nud permanent")
	ip(t, "route add 198.51.100.0/24 via 10.1.2.2 mtu 1400")
	far := netip.MustParseAddr("198.51.100.7")
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	ok(t, err)
	t.Cleanup(func() { ok(t, unix.Close(socket)) })
	ours := [4]byte{10, 1, 2, 100}
	for _, server := range []netip.Addr{servers[0], far} {
		ok(t, unix.Sendto(socket, fragmentationNeeded(ours, server.As4(), 1300), 0,
			&unix.SockaddrInet4{Addr: ours}))
		until(t, func() bool {
			return strings.Contains(ip(t, "route get "+server.String()), "mtu 1300")
		})
	}
	b := made(t, Options{})
	ok(t, b.SetService(web, destinations(1)[0], Destination{Address: far, Weight: 1,
		Encapsulation: IPIP}))
	ok(t, b.WaitReachable(t.Context()))
	hops := b.NextHops()
	if near, through := hops[servers[0]].MTU, hops[far].MTU; near != 1500 || through != 1400 {
		t.Errorf("MTUs %d and %d", near, through)
	}
}

// fragmentationNeeded is an ICMP message about an echo reply of ours that is longer than mtu.
func fragmentationNeeded(ours, server [4]byte, mtu uint16) []byte {
	message := binary.BigEndian.AppendUint16([]byte{3, 4, 0, 0, 0, 0}, mtu)
	message = append(message, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, unix.IPPROTO_ICMP, 0, 0)
	message = append(append(message, ours[:]...), server[:]...)
	message = append(message, 0, 0, 0, 0, 0, 7, 0, 1)
	sum := uint32(0)
	for at := 0; at < len(message); at += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[at:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	return message
}

// Anybody on a bridge's segment can answer for a server with the bridge's own MAC.
func TestAServerWithItsBridgesOwnMACHasNoWay(t *testing.T) {
	needRoot(t)
	ip(t, "link add bridge0 address 02:00:00:00:00:b0 type bridge")
	t.Cleanup(func() { ip(t, "link del bridge0") })
	ip(t, "link add port0 type veth peer name far3")
	t.Cleanup(func() { ip(t, "link del port0") })
	ip(t, "link set port0 master bridge0")
	for _, name := range []string{"bridge0", "port0", "far3"} {
		ip(t, "link set "+name+" up")
	}
	ip(t, "addr add 10.1.3.100/24 dev bridge0")
	ip(t, "neigh add 10.1.3.1 lladdr 02:00:00:00:00:21 dev bridge0 nud permanent")
	ip(t, "neigh add 10.1.3.2 lladdr 02:00:00:00:00:22 dev bridge0 nud permanent")
	for _, mac := range []string{"02:00:00:00:00:21", "02:00:00:00:00:22"} {
		out, err := exec.Command("bridge", "fdb", "add", mac, "dev", "port0", "master",
			"static").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	port, err := netlink.LinkByName("port0")
	ok(t, err)
	attacked, other := netip.MustParseAddr("10.1.3.1"), netip.MustParseAddr("10.1.3.2")
	b := made(t, Options{})
	ok(t, b.SetService(web, Destination{Address: attacked, Weight: 1},
		Destination{Address: other, Weight: 1}))
	ok(t, b.WaitReachable(t.Context()))
	if hop := b.NextHops()[attacked]; hop.Ifindex != uint32(port.Attrs().Index) {
		t.Errorf("frames leave by the bridge's port: %+v", hop)
	}
	ip(t, "neigh replace 10.1.3.1 lladdr 02:00:00:00:00:b0 dev bridge0 nud permanent")
	until(t, func() bool { _, is := b.NextHops()[attacked]; return !is })
	if _, is := b.NextHops()[other]; !is {
		t.Error("the other one keeps its way")
	}
}

// A flow that another balancer has: it goes on where it was, though this one would choose another
// destination for it.
func TestFlowsAreSharedWithAnotherBalancer(t *testing.T) {
	needRoot(t)
	options := Options{NextHops: Told, RememberAll: true, ShareFlows: true, MaxFlows: 4096}
	hops := map[netip.Addr]NextHop{}
	for i, address := range servers {
		hops[address] = NextHop{Ifindex: 1, MAC: MAC{2, 0, 0, 1, 0, byte(i)}, MTU: 1500,
			Direct: true}
	}
	start := func(count int) *Balancer {
		b := made(t, options)
		ok(t, b.SetLink(Link{Ifindex: 1, MAC: MAC{2, 0, 0, 0, 0, 1}}))
		ok(t, b.SetNextHops(hops))
		ok(t, b.SetService(web, destinations(count)...))
		return b
	}
	first, second := start(3), start(6)
	goes := func(b *Balancer, port uint16, flags byte) byte {
		t.Helper()
		program, err := b.Program(Native)
		ok(t, err)
		run := ebpf.RunOptions{Data: frame(port, flags), DataOut: make([]byte, 128)}
		verdict, err := program.Run(&run)
		ok(t, err)
		if verdict != 3 {
			t.Fatalf("port %d: verdict %d", port, verdict)
		}
		return run.DataOut[5]
	}
	const syn, ack = 2, 16
	had := map[uint16]byte{}
	for port := uint16(1000); port < 1400; port++ {
		had[port] = goes(first, port, syn)
		goes(first, port, ack)
	}
	flows, err := first.Flows(1000)
	ok(t, err)
	if len(flows) != 400 {
		t.Fatalf("%d of 400 flows", len(flows))
	}
	moved := 0
	for _, flow := range flows {
		before, err := second.Explain(flow.Tuple)
		ok(t, err)
		if before.Destination != flow.Destination {
			moved++
		}
		written, err := second.WriteFlow(flow)
		ok(t, err)
		if !written {
			t.Errorf("there is room for %v", flow.Tuple)
		}
	}
	if moved < 100 {
		t.Errorf("only %d of 400 would have moved", moved)
	}
	for port, server := range had {
		if goes(second, port, ack) != server {
			t.Errorf("the flow of port %d has moved", port)
		}
	}
	again, err := second.Flows(1000)
	ok(t, err)
	if len(again) != 400 {
		t.Errorf("%d of 400 flows can be told on", len(again))
	}
	gone := flows[0]
	gone.Destination = netip.MustParseAddr("10.9.9.9")
	written, err := second.WriteFlow(gone)
	ok(t, err)
	if written {
		t.Error("there is no such destination")
	}
	_, err = made(t, Options{NextHops: Told}).WriteFlow(gone)
	is(t, err, ErrInvalid, "ShareFlows")
}

// frame is a TCP packet to the service, without checksums, which the program leaves alone.
func frame(port uint16, flags byte) []byte {
	bytes := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0},
		0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 51, 100, 1, 192, 0, 2, 80,
		byte(port>>8), byte(port), 1, 0xbb, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0)
	return bytes
}
