//! The JSON of the REST interface: what goes over the wire, shared by the server and those who speak to it.
