"""The load that runs while things are broken: an engine process a group, and what it checks."""
