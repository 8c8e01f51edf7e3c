#!/usr/bin/env bash
# Writes balancerpb/ anew from proto/butterfly/v1/balancer.proto. Needs protoc (Debian:
# protobuf-compiler) and Go; the generators come from the Go proxy at these versions.
# balancer.proto.sha256 says what was generated from: `go test` fails when the .proto is another
# one.
set -euo pipefail
cd "$(dirname "$0")"

PROTO=../../proto/butterfly/v1/balancer.proto
BIN=$(mktemp -d)
trap 'rm -rf "$BIN"' EXIT
GOBIN=$BIN go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.33.0
GOBIN=$BIN go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.3.0
PATH=$BIN:$PATH protoc -I ../../proto \
    --go_out=. --go_opt=module=butterfly/clients/go \
    --go-grpc_out=. --go-grpc_opt=module=butterfly/clients/go \
    butterfly/v1/balancer.proto
sha256sum "$PROTO" | cut -d ' ' -f 1 > balancer.proto.sha256
gofmt -w balancerpb
