module butterfly/go/balancer

go 1.24.0

require (
	github.com/cilium/ebpf v0.21.0
	github.com/vishvananda/netlink v1.3.1
	github.com/vishvananda/netns v0.0.5
	golang.org/x/sys v0.37.0
)
