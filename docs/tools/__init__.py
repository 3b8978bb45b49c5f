"""What writes generated pages, and what renders pages to pictures."""
