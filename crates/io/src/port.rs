//! One attachment of the switch, whatever is behind it.
