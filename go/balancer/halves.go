package balancer

import (
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// halves are the two halves of the configuration's maps: what differs is written to the one that is
// not in force, one word switches, and nobody is waited for but programs that still use the other.
type halves struct {
	maps     map[string]*ebpf.Map
	settings *settings
	inForce  uint32
	written  [2]*image
	// torn: a write to the half that is not in force failed; written has its keys, not its values.
	torn bool
}

func newHalves(maps map[string]*ebpf.Map, settings *settings) *halves {
	return &halves{maps: maps, settings: settings, written: [2]*image{newImage(), newImage()}}
}

// image is what is in force.
func (h *halves) image() *image { return h.written[h.inForce] }

// publish puts an image in force. When it returns, every packet is judged by it.
func (h *halves) publish(now *image) error {
	other := 1 - h.inForce
	was := h.written[other]
	if err := h.write(other, was, now); err != nil {
		all := was.clone()
		all.absorb(now)
		h.written[other], h.torn = all, true
		return err
	}
	h.written[other], h.torn = now, false
	if err := h.maps["half"].Put(uint32(0), other); err != nil {
		return fmt.Errorf("the load balancer's map half: %w", err)
	}
	h.inForce = other
	waitForPrograms()
	return nil
}

func (h *halves) write(half uint32, was, now *image) error {
	set := h.settings
	if err := writeChanges(h.maps["servers"], half*set.MaxServers, was.servers, now.servers,
		h.torn); err != nil {
		return err
	}
	for number, table := range now.maglevs {
		// Tables are shared between images while they stay the same. One that is gone is left: no
		// service has its number.
		if !h.torn && was.maglevs[number] == table {
			continue
		}
		entry := maglevEntry{Slot: [maglevSize]uint32(table.slots)}
		if err := h.maps["maglevs"].Put(half*set.MaxServices+number, &entry); err != nil {
			return fmt.Errorf("the load balancer's map maglevs: %w", err)
		}
	}
	if err := writeChanges(h.maps["ports"], half*set.Ports, was.ports, now.ports,
		h.torn); err != nil {
		return err
	}
	return writeChanges(h.maps["vips"], half*set.Vips, was.vips, now.vips, h.torn)
}

// writeChanges sets what is new or other, or all; and zeroes what is gone.
func writeChanges[V comparable](table *ebpf.Map, base uint32, was, now map[uint32]V,
	all bool) error {
	var keys []uint32
	for at, entry := range now {
		if before, is := was[at]; all || !is || before != entry {
			keys = append(keys, at)
		}
	}
	for at := range was {
		if _, stays := now[at]; !stays {
			keys = append(keys, at)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	values := make([]V, len(keys))
	for i, at := range keys {
		values[i] = now[at]
		keys[i] = base + at
	}
	if _, err := table.BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("the load balancer's map %v: %w", table, err)
	}
	return nil
}

// waitForPrograms returns when no run of a program that had begun before still goes on
// (MEMBARRIER_CMD_GLOBAL, which waits for an RCU grace period; programs run within one).
func waitForPrograms() {
	const global = 1
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
	if errno != 0 {
		// Refused by kernels that leave processors without ticks (nohz_full). A program runs for
		// microseconds.
		time.Sleep(20 * time.Millisecond)
	}
}
