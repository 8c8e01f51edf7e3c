package balancer

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hold is what a program is attached by. Closed, or with the process, it is gone.
type hold io.Closer

func attach(program *ebpf.Program, ifindex uint32, mode Mode) (hold, error) {
	var held hold
	var err error
	switch mode {
	case TC:
		held, err = attachTC(program, ifindex)
	case Native:
		held, err = attachXDP(program, ifindex, link.XDPDriverMode)
	default:
		held, err = attachXDP(program, ifindex, link.XDPGenericMode)
	}
	if err == nil {
		return held, nil
	}
	if errors.Is(err, ErrOccupied) {
		return nil, err
	}
	if mode != TC && (errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST)) {
		return nil, fmt.Errorf("%w: interface %d has a program already%s", ErrOccupied, ifindex,
			occupant(ifindex))
	}
	return nil, fmt.Errorf("interface %d takes no program (%v): %w", ifindex, mode, err)
}

func attachTC(program *ebpf.Program, ifindex uint32) (hold, error) {
	if err := isFree(ifindex); err != nil {
		return nil, err
	}
	held, err := link.AttachTCX(link.TCXOptions{
		Interface: int(ifindex),
		Program:   program,
		Attach:    ebpf.AttachTCXIngress,
		Anchor:    link.Head(),
	})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
		return attachFilter(program, ifindex)
	}
	return held, err
}

func attachXDP(program *ebpf.Program, ifindex uint32, mode link.XDPAttachFlags) (hold, error) {
	return link.AttachXDP(link.XDPOptions{Program: program, Interface: int(ifindex), Flags: mode})
}

// occupant names the program that is on an interface.
func occupant(ifindex uint32) string {
	device, err := netlink.LinkByIndex(int(ifindex))
	if err != nil || device.Attrs().Xdp == nil {
		return ""
	}
	return named(ebpf.ProgramID(device.Attrs().Xdp.ProgId))
}

// filter runs a program at tc ingress where the kernel has no bpf_link for it (before Linux 6.6): a
// filter of the qdisc clsact. It outlives its process, so what is attached is a program that does
// nothing but hand on, whose array holds ours: the kernel empties an array that no process has open
// any more, whatever ended it. What is left then is a filter without effect, which the next process
// replaces, and the qdisc. One that still has its process is never replaced.
type filter struct {
	// name is held while the filter is there; nil: somebody who may not attach filters pretends to
	// have one.
	name     *heldName
	attached *netlink.BpfFilter
	entry    *ebpf.Program
	next     *ebpf.Map
}

func attachFilter(program *ebpf.Program, ifindex uint32) (hold, error) {
	next, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "chain", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1,
	})
	if err != nil {
		return nil, err
	}
	const goOn = -1 // TC_ACT_UNSPEC
	entry, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "entry",
		Type: ebpf.SchedCLS,
		Instructions: asm.Instructions{
			asm.LoadMapPtr(asm.R2, next.FD()),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnTailCall.Call(),
			asm.Mov.Imm(asm.R0, goOn),
			asm.Return(),
		},
		License: "Dual BSD/GPL",
	})
	if err != nil {
		next.Close()
		return nil, err
	}
	made := &filter{entry: entry, next: next, attached: &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: int(ifindex),
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Handle:    filterHandle,
			Priority:  filterPriority,
			Protocol:  unix.ETH_P_ALL,
		},
		Fd:           entry.FD(),
		Name:         filterName,
		DirectAction: true,
	}}
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: int(ifindex),
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
	err = next.Put(uint32(0), program)
	if err == nil {
		made.name, err = holdName(ifindex)
		if errors.Is(err, unix.EADDRINUSE) {
			err = nil
			if hasItsProcess(ifindex) {
				err = occupiedAtTC(ifindex, "a filter of another process")
			}
		}
	}
	if err == nil {
		// It may be there already.
		if err = netlink.QdiscAdd(qdisc); errors.Is(err, unix.EEXIST) {
			err = nil
		}
	}
	if err == nil {
		err = netlink.FilterReplace(made.attached)
	}
	if err != nil {
		made.name.close()
		entry.Close()
		next.Close()
		return nil, err
	}
	return made, nil
}

// Close takes the filter away; the qdisc stays, which without filters does nothing.
func (f *filter) Close() error {
	err := netlink.FilterDel(f.attached)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		// An interface that is gone has no filters either.
		err = nil
	}
	return errors.Join(err, f.release())
}

// release leaves the filter there as a dead process does: without effect, for the next one to
// replace.
func (f *filter) release() error {
	return errors.Join(f.next.Close(), f.entry.Close(), f.name.close())
}
