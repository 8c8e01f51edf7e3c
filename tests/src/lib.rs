//! The sessions share this.
