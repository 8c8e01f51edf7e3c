package balancer

import (
	"bytes"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What an interface's driver says of it (SIOCETHTOOL, linux/ethtool.h) and netlink does not.

const (
	getDriver     = 0x3
	getRxChecksum = 0x14
	getFlags      = 0x25
	setFlags      = 0x26
	rxVLAN        = 1 << 8
)

// ask sends a command, whose struct begins with its number. False: the driver does not know it, or
// there is no such interface.
func ask(name string, what unsafe.Pointer) bool {
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return false
	}
	copy(request.name[:], name)
	request.data = what
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(socket)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&request)))
	return errno == 0
}

// value asks for or sets a number.
func value(name string, command, data uint32) (uint32, bool) {
	what := struct{ command, data uint32 }{command, data}
	known := ask(name, unsafe.Pointer(&what))
	return what.data, known
}

func driverOf(name string) string {
	what := struct {
		command uint32
		name    [32]byte
		rest    [160]byte
	}{command: getDriver}
	if !ask(name, unsafe.Pointer(&what)) {
		return ""
	}
	driver, _, _ := bytes.Cut(what.name[:], []byte{0})
	return string(driver)
}

// vouchesForChecksums: of what it receives.
func vouchesForChecksums(name string) bool {
	on, known := value(name, getRxChecksum, 0)
	return known && on != 0
}

// stripsTags: the NIC takes VLAN tags out of what it receives, so that no XDP program sees them.
func stripsTags(name string) bool {
	flags, known := value(name, getFlags, 0)
	return known && flags&rxVLAN != 0
}

// stripTags has the NIC take VLAN tags out, or leave them in. False: its driver does not let us.
func stripTags(name string, strip bool) bool {
	flags, known := value(name, getFlags, 0)
	if !known {
		return false
	}
	flags &^= rxVLAN
	if strip {
		flags |= rxVLAN
	}
	_, done := value(name, setFlags, flags)
	return done
}
