//! The mirror beside the kernel: `ip` changes a namespace's tables, and the mirror says the same
//! soon after.

mod follow;
mod objects;
mod requests;
mod story;
mod under_load;
