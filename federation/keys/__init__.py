"""Keys of engines that use Mooncake directly: their namespaces, and what blocks are stored under."""
