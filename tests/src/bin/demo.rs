//! The first minute (being written).
fn main() {}
