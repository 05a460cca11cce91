"""Wire messages, generated from the .proto files beside them by `./dev proto`."""
