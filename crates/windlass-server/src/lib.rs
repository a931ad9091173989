//! The server: the REST interface over a store, with loops that keep it going.
