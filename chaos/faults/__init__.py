"""The faults: signals by part, the network between gateways, hostile peers, burners of CPU."""
