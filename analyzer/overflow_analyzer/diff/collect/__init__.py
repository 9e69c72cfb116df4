"""What a comparison gathers as the rows go by."""
