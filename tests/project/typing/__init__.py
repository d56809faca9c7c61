"""What the type checker says about code that uses perdure."""
