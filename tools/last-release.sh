#!/usr/bin/env bash
# Builds the daemon of the last release, which packaging/last-release names, from a copy of its
# source below target/, and prints the program's path.
set -eu
cd "$(dirname "$0")/.."
commit=$(grep -v '^#' packaging/last-release)
folder=$PWD/target/last-release
source=$folder/$commit
if [ ! -d "$source" ]; then
  mkdir -p "$source.new"
  git archive "$commit" | tar -x -C "$source.new"
  mv "$source.new" "$source"
fi
CARGO_TARGET_DIR=$folder/build cargo build --quiet --manifest-path "$source/Cargo.toml" \
    --bin butterflyd >&2
echo "$folder/build/debug/butterflyd"
