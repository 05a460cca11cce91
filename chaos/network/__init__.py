"""The network between the gateways of a topology: loopback with a proxy, or network namespaces."""
