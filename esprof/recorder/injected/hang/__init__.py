"""Where a rank is when it stands still, and where it was when it died."""
