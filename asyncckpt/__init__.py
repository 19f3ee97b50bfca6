"""asyncckpt."""
