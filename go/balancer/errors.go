package balancer

import "errors"

// What errors are, for errors.Is. Each error's text is a sentence that names the thing and the
// value; whatever fails leaves everything as it was.
var (
	// ErrInvalid: a value that cannot be.
	ErrInvalid = errors.New("invalid")
	// ErrExists: a service, destination or interface that is there already.
	ErrExists = errors.New("exists")
	// ErrNotFound: a service, destination or interface that is not there.
	ErrNotFound = errors.New("not found")
	// ErrFull: more of something than there is room for ([Options]).
	ErrFull = errors.New("full")
	// ErrOccupied: an interface that somebody else's program runs on.
	ErrOccupied = errors.New("occupied")
	// ErrClosed: the balancer was closed.
	ErrClosed = errors.New("the balancer is closed")
)
