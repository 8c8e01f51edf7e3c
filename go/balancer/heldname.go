package balancer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// heldName is a name that one process of a network namespace holds: a listening socket in the
// namespace of abstract names (unix(7)), which belongs to a network namespace as interfaces do, and
// goes with its process, whatever ends it. Who has a filter at tc ingress is known by one, to
// crates/xdp/src/filter.rs as well.
type heldName struct{ socket int }

const (
	nameFlags = unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	// Those that ask who holds a name are never accepted: so many may ask.
	nameBacklog = 4096
)

func nameOfFilter(ifindex uint32) unix.Sockaddr {
	return &unix.SockaddrUnix{Name: fmt.Sprintf("@butterfly/tc/%d", ifindex)}
}

// holdName takes the name of an interface's filter. EADDRINUSE: somebody has it. Any user may bind
// any name: hasItsProcess says whether it is one who may attach filters.
func holdName(ifindex uint32) (*heldName, error) {
	socket, err := unix.Socket(unix.AF_UNIX, nameFlags, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Bind(socket, nameOfFilter(ifindex))
	if err == nil {
		err = unix.Listen(socket, nameBacklog)
	}
	if err != nil {
		unix.Close(socket)
		return nil, err
	}
	return &heldName{socket}, nil
}

func (n *heldName) close() error {
	if n == nil {
		return nil
	}
	return unix.Close(n.socket)
}

// hasItsProcess says whether the process of a filter of ours is there still.
func hasItsProcess(ifindex uint32) bool {
	socket, err := unix.Socket(unix.AF_UNIX, nameFlags, 0)
	if err != nil {
		return false
	}
	defer unix.Close(socket)
	if unix.Connect(socket, nameOfFilter(ifindex)) != nil {
		return false
	}
	peer, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return false
	}
	return peer.Uid == 0 || int(peer.Uid) == os.Geteuid() || mayChangeNetwork(socket, peer)
}

// mayChangeNetwork says whether the process that listens has CAP_NET_ADMIN in effect, and not in a
// user namespace of its own, which anybody can make: such a namespace has another map of users.
func mayChangeNetwork(socket int, peer *unix.Ucred) bool {
	process, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		// A kernel before 6.5 does not say it: then it is who has the number now.
		process, err = unix.PidfdOpen(int(peer.Pid), 0)
	}
	if err != nil {
		return false
	}
	defer unix.Close(process)
	status, failed := os.ReadFile(fmt.Sprintf("/proc/%d/status", peer.Pid))
	its, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", peer.Pid))
	own, other := os.ReadFile("/proc/self/uid_map")
	if errors.Join(failed, err, other) != nil || !bytes.Equal(its, own) {
		return false
	}
	uid, admin := effective(string(status))
	// What was read was this process's: it has its number still.
	ended, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 0)
	return uid == peer.Uid && admin && err == nil && ended == 0
}

// effective is the effective user of a process, and whether it has CAP_NET_ADMIN in effect, by its
// status (proc_pid_status(5)).
func effective(status string) (uid uint32, admin bool) {
	for _, line := range strings.Split(status, "\n") {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 2 && fields[0] == "Uid:":
			number, err := strconv.ParseUint(fields[2], 10, 32)
			if err != nil {
				return 0, false
			}
			uid = uint32(number)
		case len(fields) == 2 && fields[0] == "CapEff:":
			capabilities, err := strconv.ParseUint(fields[1], 16, 64)
			admin = err == nil && capabilities&(1<<unix.CAP_NET_ADMIN) != 0
		}
	}
	return uid, admin
}
