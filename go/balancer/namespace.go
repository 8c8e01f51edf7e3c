package balancer

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// namespace is the network namespace that a balancer works in, whatever threads its methods are
// called on and its follower runs on. Sockets to ask the kernel by, interfaces' numbers and names
// of sockets are those of the thread that uses them.
type namespace struct {
	handle netns.NsHandle
}

// ofThread is the calling thread's.
func ofThread() (namespace, error) {
	handle, err := netns.GetFromPath("/proc/thread-self/ns/net")
	if err != nil {
		return namespace{}, fmt.Errorf("the thread's network namespace cannot be told: %w", err)
	}
	return namespace{handle}, nil
}

func (n *namespace) close() error { return n.handle.Close() }

// within does something on a thread in the namespace.
func (n *namespace) within(do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := ofThread()
	if err != nil {
		return err
	}
	defer here.close()
	if here.handle.Equal(n.handle) {
		return do()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this, and nothing else comes to run in there.
		runtime.LockOSThread()
		if err := netns.Set(n.handle); err != nil {
			done <- fmt.Errorf("the balancer's network namespace cannot be entered: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}

// canBeEntered says whether threads of other namespaces can go there.
func (n *namespace) canBeEntered() error {
	done := make(chan error, 1)
	// Of the process's namespace.
	go func() { done <- n.within(func() error { return nil }) }()
	return <-done
}
