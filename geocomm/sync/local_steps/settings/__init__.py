"""What a user chooses for local steps."""
