"""What a crash costs an agent that resumes, beside one that starts again: tokens, time and bytes."""
