"""Two messages to one agent at the same instant, from two processes: both are answered, once each."""
