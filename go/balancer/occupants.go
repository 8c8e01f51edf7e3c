package balancer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Who else looks at an interface's packets at tc ingress: programs by bpf_link (tcx) and filters of
// qdiscs. What is forwarded there no later one sees, nor do we what an earlier one keeps. So an
// interface with somebody else there is not taken, as crates/xdp/src/occupants.rs does it.

// What the Rust library's filters have as well: each leaves the other's alone while it has its
// process, and takes its place when it has not.
const (
	filterPriority = 1
	filterHandle   = 0xbf
	filterName     = "pass"
)

// isFree says who is at tc ingress, but not a filter of ours that a dead process has left behind,
// which does nothing.
func isFree(ifindex uint32) error {
	programs, err := link.QueryPrograms(link.QueryOptions{Target: int(ifindex),
		Attach: ebpf.AttachTCXIngress})
	switch {
	// A kernel without tcx.
	case errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported):
	case err != nil:
		return fmt.Errorf("interface %d does not say who is at tc ingress: %w", ifindex, err)
	case len(programs.Programs) > 0:
		return occupiedAtTC(ifindex, "a program"+named(programs.Programs[0].ID))
	}
	device := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: int(ifindex)}}
	filters, err := whole(func() ([]netlink.Filter, error) {
		return netlink.FilterList(device, netlink.HANDLE_MIN_INGRESS)
	})
	// A kernel without filters has none.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("interface %d does not list its filters at tc ingress: %w", ifindex, err)
	}
	for _, one := range filters {
		bpf, is := one.(*netlink.BpfFilter)
		switch {
		case !is:
			return occupiedAtTC(ifindex, "a filter ("+one.Type()+")")
		case !isOurs(bpf) || hasItsProcess(ifindex):
			return occupiedAtTC(ifindex, "a filter with a program"+named(ebpf.ProgramID(bpf.Id)))
		}
	}
	return nil
}

func occupiedAtTC(ifindex uint32, by string) error {
	return fmt.Errorf("%w: interface %d has %s at tc ingress already", ErrOccupied, ifindex, by)
}

// isOurs: it has the place that ours take, and their program's name; libbpf puts the program's
// number behind it.
func isOurs(one *netlink.BpfFilter) bool {
	name, _, _ := strings.Cut(one.Name, ":")
	return one.Handle == filterHandle && one.Priority == filterPriority && name == filterName
}

// named says which program that is, to follow what it is.
func named(id ebpf.ProgramID) string {
	other, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Sprintf(", number %d", id)
	}
	defer other.Close()
	info, err := other.Info()
	if err != nil {
		return fmt.Sprintf(", number %d", id)
	}
	return fmt.Sprintf(": %q, number %d", info.Name, id)
}
