"""Keys of engines that use Mooncake directly: which namespace they are of, and what blocks are stored under."""
