"""What builds the book: export, execute, check."""
